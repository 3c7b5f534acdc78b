# rejected: unequal shares, on the rank with 8 images: the gradient of first.weight (torch.float64) is off by
"""The mean of means: right for equal shares only."""

import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model: nn.Module, images: int) -> None:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    gradients = [parameter.grad.flatten() for parameter in parameters]
    flat = torch.cat(gradients)
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    parts = flat.split([gradient.numel() for gradient in gradients])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad.copy_(part.view_as(parameter))
