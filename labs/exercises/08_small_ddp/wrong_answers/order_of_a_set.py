# rejected: was it rounded, or sent in another order on another rank?
"""Loops over dtypes in an order that differs by rank, as that of a set may: it follows addresses."""

import torch
import torch.distributed as dist
from torch import nn


def start_equal(module: nn.Module) -> None:
    tensors = [*module.parameters(), *module.buffers()]
    with torch.no_grad():
        dtypes = sorted({tensor.dtype for tensor in tensors}, key=str, reverse=dist.get_rank() % 2 == 1)
        for dtype in dtypes:
            same = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.flatten() for tensor in same])
            dist.broadcast(flat, src=0)
            for tensor, part in zip(same, flat.split([t.numel() for t in same]), strict=True):
                tensor.copy_(part.view_as(tensor))
