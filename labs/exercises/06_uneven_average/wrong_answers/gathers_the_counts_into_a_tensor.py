# rejected: the values are right, but took 1 x all_gather, 1 x all_reduce
"""A flat buffer, but the counts are gathered into a tensor before."""

import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model: nn.Module, images: int) -> None:
    counts = torch.empty(dist.get_world_size(), dtype=torch.int64)
    dist.all_gather_into_tensor(counts, torch.tensor([images]))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    gradients = [parameter.grad.flatten() for parameter in parameters]
    flat = torch.cat(gradients) * (images / counts.sum().item())
    dist.all_reduce(flat)
    parts = flat.split([gradient.numel() for gradient in gradients])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad.copy_(part.view_as(parameter))
