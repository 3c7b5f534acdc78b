# rejected: the gradient of first.weight is 0.333 times that of one process
"""Weights correctly, then divides by the world size out of habit."""

import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model: nn.Module, images: int) -> None:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    count = parameters[0].new_tensor([1.0])
    gradients = [parameter.grad.flatten() for parameter in parameters]
    flat = torch.cat([count, *gradients]) * images
    dist.all_reduce(flat)
    total, *sums = flat.split([1, *[gradient.numel() for gradient in gradients]])
    total *= dist.get_world_size()
    for parameter, summed in zip(parameters, sums, strict=True):
        parameter.grad.copy_((summed / total).view_as(parameter))
