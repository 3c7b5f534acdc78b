# rejected: equal streams: after training, parameter 1.weight (torch.float64) is off
"""Sums of losses divided by the number of ranks."""

import torch
import torch.distributed as dist


def train_to_the_end(model, optimizer, loss_sum, batches):
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
            parameter.grad = (part / dist.get_world_size()).view_as(parameter)
        optimizer.step()
        steps += 1
