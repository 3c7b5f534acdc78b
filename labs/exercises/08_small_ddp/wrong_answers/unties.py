# rejected: the tied weights are two parameters now
"""Puts new parameters into the layers."""

import torch.distributed as dist
from torch import nn


def start_equal(module: nn.Module) -> None:
    for part in module.modules():
        for name, tensor in list(part.named_parameters(recurse=False)):
            copied = tensor.detach().clone()
            dist.broadcast(copied, src=0)
            setattr(part, name, nn.Parameter(copied))
        for buffer in part.buffers(recurse=False):
            dist.broadcast(buffer, src=0)
