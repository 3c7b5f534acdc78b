# rejected: the gradients are right, but took 5 x all_reduce
"""The right values, a message for each parameter and one for the count."""

import torch
import torch.distributed as dist
from torch import nn


def average_uneven(model: nn.Module, images: int) -> None:
    total = torch.tensor(float(images), dtype=torch.float64, device=next(model.parameters()).device)
    dist.all_reduce(total)
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad *= images / total
        dist.all_reduce(parameter.grad)
