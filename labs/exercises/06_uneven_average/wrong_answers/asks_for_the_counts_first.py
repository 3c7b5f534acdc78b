# rejected: the gradients are right, but took 1 x all_gather_object, 1 x all_reduce
"""A flat buffer, but the count travels in a message of its own."""

import torch
import torch.distributed as dist
from torch import nn


def average_uneven(model: nn.Module, images: int) -> None:
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, images)
    parameters = list(model.parameters())
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters]) * (images / sum(counts))
    dist.all_reduce(flat)
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad.copy_(part.view_as(parameter))
