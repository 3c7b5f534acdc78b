# rejected: buffer norm.num_batches_tracked (torch.int64) on rank 0 is not rank 0's, nor this rank's own
"""One message in float64 for all dtypes: a large integer is rounded, on rank 0 too."""

import torch
import torch.distributed as dist
from torch import nn


def start_equal(module: nn.Module) -> None:
    tensors = [*module.parameters(), *module.buffers()]
    with torch.no_grad():
        flat = torch.cat([tensor.flatten().double() for tensor in tensors])
        dist.broadcast(flat, src=0)
        for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))
