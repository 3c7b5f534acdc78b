# rejected: did float32 come in between?
"""Packs the buffer in float32, torch's default, though the gradients are float64."""

import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model: nn.Module, images: int) -> None:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    sizes = [parameter.numel() for parameter in parameters]
    flat = torch.empty(1 + sum(sizes), device=parameters[0].device)
    flat[0] = images
    flat[1:] = torch.cat([parameter.grad.flatten() for parameter in parameters]) * images
    dist.all_reduce(flat)
    total, *sums = flat.split([1, *sizes])
    for parameter, summed in zip(parameters, sums, strict=True):
        parameter.grad.copy_((summed / total).view_as(parameter))
