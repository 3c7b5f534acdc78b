"""Exercise 06: average gradients over ranks with unequal shares, in one all-reduce."""

import torch
import torch.distributed as dist
from torch import nn


def average_uneven(model: nn.Module, images: int) -> None:
    """Replace the gradients on every rank by those of the mean loss over the joined batch, in place.

    Each rank has called ``backward`` on the *mean* loss over its own ``images`` images. No rank knows how
    many the others have. A rank with 0 images has not called ``backward``: there ``parameter.grad`` is
    None. Some rank has at least one image. All parameters learn, are float64, and lie on one device.

    Target: one ``dist.all_reduce``, and no other collective.
    """
    # solution: begin
    parameters = list(model.parameters())
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    count = parameters[0].new_tensor([1.0])
    flat = torch.cat([count, *(parameter.grad.flatten() for parameter in parameters)]) * images
    dist.all_reduce(flat)
    total, *parts = flat.split([1, *(parameter.numel() for parameter in parameters)])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad.copy_((part / total).view_as(parameter))
    # solution: end
