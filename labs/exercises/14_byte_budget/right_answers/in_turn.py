# accepted: another part of the gradient in each step, in turn; no places are sent
"""A window that moves on."""

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
        self.k = budget // like.itemsize
        self.start = 0

    def average(self, gradient: torch.Tensor) -> torch.Tensor:
        """Send a part of what this rank was given so far; return the mean over the ranks of what they sent.

        (numel,), the same on all ranks. Leave ``gradient``, (numel,), as it is. Afterwards ``residual`` is
        what this rank still has to send.
        """
        corrected = gradient + self.residual
        window = slice(self.start, self.start + self.k)
        values = corrected[window].clone()
        self.residual = corrected
        self.residual[window] = 0
        self.start = (self.start + self.k) % len(gradient)
        dist.all_reduce(values)
        mean = torch.zeros_like(gradient)
        mean[window] = values / dist.get_world_size()
        return mean
