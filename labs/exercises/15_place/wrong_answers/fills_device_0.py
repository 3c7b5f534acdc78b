# rejected: cut after 9 of 12 layers, the slower device takes
"""Adds layers to device 0 until it has at least half of the time, the last one included."""

import torch
import torch.distributed as dist


def place(layers, x: torch.Tensor, clock) -> int:
    for _ in range(2):
        seconds, inputs = [], x
        for layer in layers:
            start = clock()
            inputs = layer(inputs)
            seconds.append(clock() - start)
    mean = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(mean)
    cut = int((mean.cumsum(0) < mean.sum() / 2).sum()) + 1
    return min(cut, len(layers) - 1)
