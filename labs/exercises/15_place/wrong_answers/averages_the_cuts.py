# rejected: a large head: cut after 10 of 12 layers
"""The ranks average their cuts instead of their times."""

import torch
import torch.distributed as dist


def place(layers, x: torch.Tensor, clock) -> int:
    for _ in range(2):
        seconds, inputs = [], x
        for layer in layers:
            start = clock()
            inputs = layer(inputs)
            seconds.append(clock() - start)
    own = min(range(1, len(layers)), key=lambda cut: max(sum(seconds[:cut]), sum(seconds[cut:])))
    cuts = torch.tensor(float(own))
    dist.all_reduce(cuts)
    return round(cuts.item() / dist.get_world_size())
