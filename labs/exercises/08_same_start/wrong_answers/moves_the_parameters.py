# rejected: parameter 0.weight has a new storage
"""Lets parameters point into the message."""

import torch
import torch.distributed as dist
from torch import nn


def start_equal(module: nn.Module) -> None:
    for dtype in (torch.float64, torch.int64):
        same = [t for t in (*module.parameters(), *module.buffers()) if t.dtype == dtype]
        flat = torch.cat([tensor.detach().flatten() for tensor in same])
        dist.broadcast(flat, src=0)
        for tensor, part in zip(same, flat.split([t.numel() for t in same]), strict=True):
            tensor.data = part.view_as(tensor)
