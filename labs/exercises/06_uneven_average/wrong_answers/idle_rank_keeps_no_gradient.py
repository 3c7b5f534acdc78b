# rejected: on the rank with 0 images: the gradient of first.weight is still None
"""A rank without images takes part, but does not keep the result."""

import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model: nn.Module, images: int) -> None:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    count = parameters[0].new_tensor([1.0])
    flat = torch.cat([count, *[gradient.flatten() for gradient in gradients]]) * images
    dist.all_reduce(flat)
    total, *sums = flat.split([1, *[gradient.numel() for gradient in gradients]])
    for gradient, summed in zip(gradients, sums, strict=True):
        gradient.copy_((summed / total).view_as(gradient))
