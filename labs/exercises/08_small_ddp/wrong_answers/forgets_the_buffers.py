# rejected: buffer in_float32 (torch.float32) on rank 1 is not rank 0's, it is still this rank's own
"""Sends the parameters only."""

import torch
import torch.distributed as dist
from torch import nn


def start_equal(module: nn.Module) -> None:
    tensors = list(module.parameters())
    with torch.no_grad():
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.broadcast(flat, src=0)
        for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))
