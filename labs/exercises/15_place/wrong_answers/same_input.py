# rejected: was called with another input than the output of the layer before
"""Measures each layer on the first input."""

import torch
import torch.distributed as dist


def place(layers, x: torch.Tensor, clock) -> int:
    seconds = []
    for layer in layers:
        layer(x)
        start = clock()
        layer(x)
        seconds.append(clock() - start)
    mean = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(mean)
    return min(range(1, len(layers)), key=lambda cut: max(mean[:cut].sum(), mean[cut:].sum()).item())
