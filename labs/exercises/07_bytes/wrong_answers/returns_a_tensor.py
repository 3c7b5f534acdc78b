# rejected: the result is a Tensor, expected a number of bytes
"""Right, but in a tensor, whose int32 would overflow at 2 GiB."""

import torch


def bytes_through_device_0(
    devices: int, parameters: int, buffers: int, inputs: int, outputs: int
) -> torch.Tensor:
    others = devices - 1
    sizes = torch.tensor([parameters, buffers, inputs // devices, outputs // devices], dtype=torch.int32)
    times = torch.tensor([2, 1, 1, 2], dtype=torch.int32)
    return others * (sizes * times).sum()
