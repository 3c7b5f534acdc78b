# rejected: average_gradients is right; train_step is not written yet
"""The second function is still the stub."""

import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model: nn.Module, images: int) -> None:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    count = parameters[0].new_tensor([1.0])
    gradients = [parameter.grad.flatten() for parameter in parameters]
    flat = torch.cat([count, *gradients]) * images
    dist.all_reduce(flat)
    total, *sums = flat.split([1, *[gradient.numel() for gradient in gradients]])
    for parameter, summed in zip(parameters, sums, strict=True):
        parameter.grad.copy_((summed / total).view_as(parameter))


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    raise NotImplementedError  # your turn: replace this line
