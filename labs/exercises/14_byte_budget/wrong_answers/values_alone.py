# rejected: ranks [1, 2] differ from rank 0
"""All-reduces the values, as if all ranks had chosen the same places."""

import torch
import torch.distributed as dist


class Compressor:
    """Averages gradients over all ranks. A rank hands at most ``budget`` bytes to collectives in a step.

    Args:
        like: a gradient, (numel,), float64, for size, dtype and device.
        budget: bytes, at least 64. In an all-reduce it counts what a rank hands in, in an all-gather its own
            part.

    ``residual``, (numel,), is what this rank was given and has not sent yet.
    """

    def __init__(self, like: torch.Tensor, budget: int) -> None:
        self.residual = torch.zeros_like(like)
        self.k = budget // (like.itemsize + 4)  # a number, and its place as an int32

    def average(self, gradient: torch.Tensor) -> torch.Tensor:
        """Send a part of what this rank was given so far; return the mean over the ranks of what they sent.

        (numel,), the same on all ranks. Leave ``gradient``, (numel,), as it is. Afterwards ``residual`` is
        what this rank still has to send.
        """
        corrected = gradient + self.residual
        places = corrected.abs().topk(self.k).indices
        values = corrected[places]
        self.residual = corrected.index_fill(0, places, 0)

        ranks = dist.get_world_size()
        dist.all_reduce(values)
        total = torch.zeros_like(gradient)
        total[places] = values
        return total / ranks
