# rejected: equal streams: batch 1 was asked for after 0 steps
"""Counts the batches first. A stream has no length."""

import torch
import torch.distributed as dist


def train_to_the_end(model, optimizer, loss_sum, batches):
    parameters = list(model.parameters())
    steps = 0
    batches = list(batches)
    longest = torch.tensor([len(batches)])
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    stream = iter(batches)
    for _ in range(int(longest)):
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
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = (part / total).view_as(parameter)
        optimizer.step()
        steps += 1
    return steps
