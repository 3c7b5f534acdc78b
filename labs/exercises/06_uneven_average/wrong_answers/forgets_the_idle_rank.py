# rejected: wrong: AttributeError: 'NoneType' object has no attribute 'flatten'
"""Takes it for granted that each rank has a gradient."""

import torch
import torch.distributed as dist
from torch import nn


def average_uneven(model: nn.Module, images: int) -> None:
    parameters = list(model.parameters())
    count = parameters[0].new_tensor([1.0])
    flat = torch.cat([count, *(parameter.grad.flatten() for parameter in parameters)]) * images
    dist.all_reduce(flat)
    total, *parts = flat.split([1, *(parameter.numel() for parameter in parameters)])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad.copy_((part / total).view_as(parameter))
