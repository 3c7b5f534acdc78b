# rejected: a gradient is None on the rank with 0 images: 'NoneType' object has no attribute 'flatten'
"""Takes it for granted that each rank has a gradient."""

import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model: nn.Module, images: int) -> None:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    count = parameters[0].new_tensor([1.0])
    gradients = [parameter.grad.flatten() for parameter in parameters]
    flat = torch.cat([count, *gradients]) * images
    dist.all_reduce(flat)
    total, *sums = flat.split([1, *[gradient.numel() for gradient in gradients]])
    for parameter, summed in zip(parameters, sums, strict=True):
        parameter.grad.copy_((summed / total).view_as(parameter))
