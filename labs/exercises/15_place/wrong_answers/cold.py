# rejected: (a layer was called only once)
"""Measures the first call."""

import torch
import torch.distributed as dist


def place(layers, x: torch.Tensor, clock) -> int:
    seconds = []
    for layer in layers:
        start = clock()
        x = layer(x)
        seconds.append(clock() - start)
    mean = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(mean)
    return min(range(1, len(layers)), key=lambda cut: max(mean[:cut].sum(), mean[cut:].sum()).item())
