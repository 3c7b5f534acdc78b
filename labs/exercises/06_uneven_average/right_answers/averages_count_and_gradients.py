# accepted: an average over ranks is right when the count is averaged, too
"""``ReduceOp.AVG``, asynchronously, the count last; gradients become views of the buffer."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def average_gradients(model: nn.Module, images: int) -> None:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    pieces = []
    for parameter in parameters:
        if images == 0:
            pieces.append(torch.zeros_like(parameter).flatten())
        else:
            pieces.append(images * parameter.grad.flatten())
    pieces.append(torch.full_like(pieces[0][:1], images))
    flat = torch.cat(pieces)
    work = dist.all_reduce(flat, op=dist.ReduceOp.AVG, async_op=True)
    work.wait()
    flat /= flat[-1].clone()
    begin = 0
    for parameter in parameters:
        end = begin + parameter.numel()
        parameter.grad = flat[begin:end].view_as(parameter)
        begin = end


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)  # of no images: not a number, but its gradient is zero
    loss.backward()
    average_gradients(model, len(x))
    optimizer.step()
