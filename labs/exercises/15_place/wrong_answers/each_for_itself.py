# rejected: DDP needs the same model on each
"""Each rank trusts its own times."""

import torch


def place(layers, x: torch.Tensor, clock) -> int:
    for _ in range(2):
        seconds, inputs = [], x
        for layer in layers:
            start = clock()
            inputs = layer(inputs)
            seconds.append(clock() - start)
    return min(range(1, len(layers)), key=lambda cut: max(sum(seconds[:cut]), sum(seconds[cut:])))
