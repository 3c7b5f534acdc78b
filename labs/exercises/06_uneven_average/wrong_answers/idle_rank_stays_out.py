# rejected: average_gradients, an idle rank: the rank with 0 images calls no collective
"""A rank without images returns at once, and the others wait for it."""

import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model: nn.Module, images: int) -> None:
    if images == 0:
        return
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    count = parameters[0].new_tensor([1.0])
    gradients = [parameter.grad.flatten() for parameter in parameters]
    flat = torch.cat([count, *gradients]) * images
    dist.all_reduce(flat)
    total, *sums = flat.split([1, *[gradient.numel() for gradient in gradients]])
    for parameter, summed in zip(parameters, sums, strict=True):
        parameter.grad.copy_((summed / total).view_as(parameter))
