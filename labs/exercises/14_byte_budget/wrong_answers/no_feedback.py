# rejected: the residual stays as it was: what is not sent is lost
"""Keeps nothing."""

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

        ranks = dist.get_world_size()
        all_values = values.new_empty(ranks * self.k)
        all_places = torch.empty(ranks * self.k, dtype=torch.int32, device=values.device)
        dist.all_gather_into_tensor(all_values, values)
        dist.all_gather_into_tensor(all_places, places.int())
        total = torch.zeros_like(gradient)
        for theirs, where in zip(all_values.chunk(ranks), all_places.chunk(ranks), strict=True):
            total[where] += theirs
        return total / ranks
