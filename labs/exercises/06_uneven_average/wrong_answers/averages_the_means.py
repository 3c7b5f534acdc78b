# rejected: unequal shares: the gradient of 1.weight is off by
"""The mean of means: right for equal shares only."""

import torch
import torch.distributed as dist
from torch import nn


def average_uneven(model: nn.Module, images: int) -> None:
    parameters = list(model.parameters())
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad.copy_(part.view_as(parameter))
