# rejected: the values are right, but took 2 x all_gather, 1 x all_reduce
"""A flat buffer, but the count travels in messages of its own."""

import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model: nn.Module, images: int) -> None:
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, images)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    gradients = [parameter.grad.flatten() for parameter in parameters]
    flat = torch.cat(gradients) * (images / sum(counts))
    dist.all_reduce(flat)
    parts = flat.split([gradient.numel() for gradient in gradients])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad.copy_(part.view_as(parameter))
