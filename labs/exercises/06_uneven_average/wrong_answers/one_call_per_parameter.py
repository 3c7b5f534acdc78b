# rejected: the values are right, but took 6 x all_reduce
"""The right values, a message for each parameter and one for the count."""

import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model: nn.Module, images: int) -> None:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = parameters[0].new_tensor(float(images))
    dist.all_reduce(total)
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad *= images / total
        dist.all_reduce(parameter.grad)
