"""Exercise 15: forward and backward of one stage, from which two tensors travel on."""

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F


def forward_backward(
    stage: Callable, inputs: torch.Tensor | None, labels: torch.Tensor | None, like: torch.Tensor
) -> torch.Tensor:
    """Fill the gradients of this rank's stage. Returns the loss on the last rank, 0 elsewhere.

    Each block of this model reads two tensors: ``x``, the previous block's output, and ``x0``, the output of
    the embedding. So both go from rank to rank, and a gradient of each comes back.

    Args:
        stage: this rank's part of the model, ``y, x0 = stage(x, x0)``. It returns ``x0`` as it came. The
            first rank's begins with the embedding: ``y, x0 = stage(inputs, None)``.
        inputs: on the first rank, else None.
        labels: on the last rank, else None. The loss is ``F.cross_entropy(y, labels)``.
        like: has the shape, dtype and device of ``x``, of ``x0`` and of their gradients.

    All ranks call it. A rank sends to its neighbours, and nothing but these tensors. There may be one rank.
    """
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    # solution: begin
    x, x0 = inputs, None
    if rank > 0:
        x, x0 = torch.empty_like(like), torch.empty_like(like)
        for arriving in (x, x0):
            dist.recv(arriving, src=rank - 1)
            arriving.requires_grad_()
    y, passed_on = stage(x, x0)
    if rank == last:
        loss = F.cross_entropy(y, labels)
        loss.backward()
    else:
        for leaving in (y, passed_on):
            dist.send(leaving.detach(), dst=rank + 1)
        gradients = [torch.empty_like(like), torch.empty_like(like)]
        for gradient in gradients:
            dist.recv(gradient, src=rank + 1)
        torch.autograd.backward([y, passed_on], gradients)
        loss = torch.zeros_like(like).sum()
    if rank > 0:
        for leaf in (x, x0):
            dist.send(leaf.grad, dst=rank - 1)
    return loss.detach()
    # solution: end
