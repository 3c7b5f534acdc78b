"""Exercise 12: train until no rank has data, without Join."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn


def train_to_the_end(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_sum: nn.Module,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
) -> int:
    """Train until no rank has a batch left, as one process on the joined batches does. Return the steps made.

    Step k uses the k-th batch of every rank that has one, whatever their sizes. Its loss is the mean over all
    images of these batches. ``batches`` is a stream: nobody knows its length, a rank's may be empty, and the
    next batch may be asked for only when the step before is done. All ranks make the same number of steps.

    ``model`` is plain, float64, equal on all ranks, and all its parameters learn. ``optimizer`` has momentum.
    ``loss_sum(scores, labels)`` is the *sum* of the losses of a batch. No DDP, no ``Join``.

    Target: at most two ``dist.all_reduce`` for each step and two at the end, and no other collective.
    """
    # solution: begin
    parameters = list(model.parameters())
    steps = 0
    stream = iter(batches)
    while True:
        optimizer.zero_grad()
        batch = next(stream, None)
        images = 0
        if batch is not None:
            x, y = batch
            images = len(x)
            loss_sum(model(x), y).backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        count = parameters[0].new_tensor([images])
        flat = torch.cat([count, *(gradient.flatten() for gradient in gradients)])
        dist.all_reduce(flat)
        total, *parts = flat.split([1, *(p.numel() for p in parameters)])
        if total.item() == 0:
            return steps
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = (part / total).view_as(parameter)
        optimizer.step()
        steps += 1
    # solution: end
