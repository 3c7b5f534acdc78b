# accepted: only rank 0 looks for the cut, from everybody's times, and tells the others
"""Times are gathered as Python lists."""

import torch
import torch.distributed as dist


def place(layers, x: torch.Tensor, clock) -> int:
    for _ in range(2):
        seconds, inputs = [], x
        for layer in layers:
            start = clock()
            inputs = layer(inputs)
            seconds.append(clock() - start)
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, seconds)
    chosen = [0]
    if dist.get_rank() == 0:
        total = [sum(times) for times in zip(*everyones, strict=True)]
        cuts = range(1, len(layers))
        chosen[0] = min(cuts, key=lambda cut: max(sum(total[:cut]), sum(total[cut:])))
    dist.broadcast_object_list(chosen, src=0)
    return chosen[0]
