# rejected: is a parameter cut in pieces?
"""Cuts a flat vector of all parameters, as the lab does: right for Adam, not for any optimizer."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn


class ZeRO1:
    def __init__(self, params: Iterable[nn.Parameter], optimizer_class: type, **options) -> None:
        self.params = [p for p in params if p.requires_grad]
        ranks = dist.get_world_size()
        numel = sum(p.numel() for p in self.params)
        self.flat = self.params[0].new_zeros(numel + -numel % ranks)
        self.gradient = torch.zeros_like(self.flat)
        start = 0
        for p in self.params:
            end = start + p.numel()
            self.flat[start:end] = p.detach().flatten()
            p.data = self.flat[start:end].view_as(p)
            p.grad = self.gradient[start:end].view_as(p)
            start = end
        self.part = self.flat.chunk(ranks)[dist.get_rank()]
        self.shard = nn.Parameter(self.part)
        self.optimizer = optimizer_class([self.shard], **options)

    def step(self) -> None:
        self.shard.grad = torch.empty_like(self.part)
        dist.reduce_scatter_tensor(self.shard.grad, self.gradient, op=dist.ReduceOp.AVG)
        self.optimizer.step()
        dist.all_gather_into_tensor(self.flat, self.part)

    def zero_grad(self) -> None:
        self.gradient.zero_()
