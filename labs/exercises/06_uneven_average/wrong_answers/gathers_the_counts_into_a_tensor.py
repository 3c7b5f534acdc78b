# rejected: the gradients are right, but took 1 x all_gather_into_tensor, 1 x all_reduce
"""A flat buffer, but the counts are gathered into a tensor before."""

import torch
import torch.distributed as dist
from torch import nn


def average_uneven(model: nn.Module, images: int) -> None:
    counts = torch.empty(dist.get_world_size(), dtype=torch.int64)
    dist.all_gather_into_tensor(counts, torch.tensor([images]))
    parameters = list(model.parameters())
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters]) * (images / counts.sum().item())
    dist.all_reduce(flat)
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad.copy_(part.view_as(parameter))
