# rejected: parameter 1.weight still has no gradient on the rank with 0 images
"""A rank without images takes part, but does not keep the result."""

import torch
import torch.distributed as dist
from torch import nn


def average_uneven(model: nn.Module, images: int) -> None:
    parameters = list(model.parameters())
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    count = parameters[0].new_tensor([1.0])
    flat = torch.cat([count, *(gradient.flatten() for gradient in gradients)]) * images
    dist.all_reduce(flat)
    total, *parts = flat.split([1, *(parameter.numel() for parameter in parameters)])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_((part / total).view_as(gradient))
