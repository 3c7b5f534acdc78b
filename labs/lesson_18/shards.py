"""One vector of parameters cut into shards, with an optimizer for each: simulated ranks in one process."""

from collections.abc import Callable

import torch
from torch import nn


def after_five_steps(make: Callable, shards: int, shape: tuple[int, ...] = (12, 10)) -> torch.Tensor:
    """Parameters, flat, after five steps of a simple loss. One shard keeps the shape, several are flat."""
    row = torch.linspace(-1, 1, 120, dtype=torch.float64)
    row = row.reshape(shape) if shards == 1 else row
    parts = [nn.Parameter(part) for part in row.tensor_split(shards)]
    optimizers = [make([part]) for part in parts]  # one for each simulated rank
    for _ in range(5):
        gradient = torch.cat([part.detach().flatten() for part in parts]).pow(3)
        for part, piece in zip(parts, gradient.tensor_split(shards), strict=True):
            part.grad = piece.view_as(part)
        for one in optimizers:
            one.step()
    return torch.cat([part.detach().flatten() for part in parts])
