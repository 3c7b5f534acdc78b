# accepted: all dtypes travel as bytes in one broadcast
"""Looks at each tensor as bytes, so that one message carries them all without rounding."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from shared.runtime.loading import load_file

average_in_backward = load_file(Path(__file__).parents[1] / "solution.py", "solution_08").average_in_backward


def start_equal(module: nn.Module) -> None:
    tensors = [*module.parameters(), *module.buffers()]
    with torch.no_grad():
        parts = [tensor.contiguous().flatten().view(torch.uint8) for tensor in tensors]
        flat = torch.cat(parts)
        dist.broadcast(flat, src=0)
        for tensor, part in zip(tensors, flat.split([part.numel() for part in parts]), strict=True):
            tensor.copy_(part.clone().view(tensor.dtype).view_as(tensor))
