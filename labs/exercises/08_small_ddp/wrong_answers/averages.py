# rejected: parameter first.weight (torch.float64) on rank 0 is not rank 0's, nor this
"""All ranks agree, but on the mean."""

import torch
import torch.distributed as dist
from torch import nn


def start_equal(module: nn.Module) -> None:
    with torch.no_grad():
        for tensor in module.parameters():
            dist.all_reduce(tensor)
            tensor /= dist.get_world_size()
