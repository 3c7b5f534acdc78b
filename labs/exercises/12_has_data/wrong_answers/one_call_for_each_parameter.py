# rejected: equal streams: all is right, but 3 steps took
"""Right, with an all-reduce for each parameter."""

import torch
import torch.distributed as dist


def train_to_the_end(model, optimizer, loss_sum, batches):
    parameters = list(model.parameters())
    steps = 0
    stream = iter(batches)
    while True:
        optimizer.zero_grad()
        batch = next(stream, None)
        total = torch.zeros(1, dtype=torch.float64)
        if batch is not None:
            x, y = batch
            total += len(x)
            loss_sum(model(x), y).backward()
        dist.all_reduce(total)
        if total.item() == 0:
            return steps
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= total
        optimizer.step()
        steps += 1
