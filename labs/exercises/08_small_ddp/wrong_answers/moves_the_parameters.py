# rejected: parameter first.weight has a new storage
"""Lets parameters point into the message."""

import torch
import torch.distributed as dist
from torch import nn


def start_equal(module: nn.Module) -> None:
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in [*module.parameters(), *module.buffers()]:
        by_dtype.setdefault(tensor.dtype, []).append(tensor)
    for same in by_dtype.values():
        flat = torch.cat([tensor.detach().flatten() for tensor in same])
        dist.broadcast(flat, src=0)
        for tensor, part in zip(same, flat.split([t.numel() for t in same]), strict=True):
            tensor.data = part.view_as(tensor)
