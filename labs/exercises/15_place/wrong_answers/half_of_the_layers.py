# rejected: cut after 6 of 12 layers, the slower device takes
"""Half of the layers on each device, measured or not."""

import torch


def place(layers, x: torch.Tensor, clock) -> int:
    for _ in range(2):
        inputs = x
        for layer in layers:
            inputs = layer(inputs)
    return len(layers) // 2
