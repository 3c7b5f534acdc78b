"""Exercise 08: a small DDP of your own: equal at the start, and averaged in backward."""

import torch
import torch.distributed as dist
from torch import nn


def start_equal(module: nn.Module) -> None:
    """Give every rank rank 0's parameters and buffers, in place.

    They have several dtypes. Tensors of one dtype travel together: at most one broadcast for each dtype.
    Tied parameters stay tied, and a parameter keeps its storage: optimizers hold it.
    """
    # solution: begin
    by_dtype = {}  # a dict keeps the order of insertion, which is the same on all ranks
    for tensor in [*module.parameters(), *module.buffers()]:
        by_dtype.setdefault(tensor.dtype, []).append(tensor)
    with torch.no_grad():
        for same in by_dtype.values():
            flat = torch.cat([tensor.flatten() for tensor in same])
            dist.broadcast(flat, src=0)
            parts = flat.split([tensor.numel() for tensor in same])
            for tensor, part in zip(same, parts, strict=True):
                tensor.copy_(part.view_as(tensor))
    # solution: end


def average_in_backward(module: nn.Module) -> None:
    """Arrange that after each later ``backward()`` every ``p.grad`` is the mean of the ranks' gradients.

    Called once, after ``start_equal``. The training loop calls nothing but ``backward()``. Each rank uses the
    same parameters; some do not learn. Make one all-reduce for each parameter: lesson 09 makes it fast. Yours
    averages in every backward; torch's DDP does so in one for each forward.
    """
    # solution: begin
    ranks = dist.get_world_size()

    def average(parameter: nn.Parameter) -> None:
        dist.all_reduce(parameter.grad)
        parameter.grad /= ranks

    for parameter in module.parameters():  # a tied one once
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(average)
    # solution: end
