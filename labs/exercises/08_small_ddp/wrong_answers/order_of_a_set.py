# rejected: was it rounded, or sent in another order on another rank?
"""Loops over a set of dtypes: its order depends on where a process keeps its objects."""

import torch
import torch.distributed as dist
from torch import nn


def start_equal(module: nn.Module) -> None:
    tensors = [*module.parameters(), *module.buffers()]
    with torch.no_grad():
        for dtype in {tensor.dtype for tensor in tensors}:
            same = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.flatten() for tensor in same])
            dist.broadcast(flat, src=0)
            for tensor, part in zip(same, flat.split([t.numel() for t in same]), strict=True):
                tensor.copy_(part.view_as(tensor))
