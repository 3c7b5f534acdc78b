# rejected: was stepped with this rank's gradient
"""Averages nothing."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn


class ZeRO1:
    def __init__(
        self, params: Iterable[nn.Parameter], optimizer_class: type[torch.optim.Optimizer], **options
    ) -> None:
        self.rank = dist.get_rank()
        self.ranks = dist.get_world_size()
        self.params = [p for p in params if p.requires_grad]
        self.owner = self.partition()
        mine = [p for p, owner in zip(self.params, self.owner, strict=True) if owner == self.rank]
        self.optimizer = optimizer_class(mine, **options)

    def partition(self) -> list[int]:
        load = [0] * self.ranks
        owner = [0] * len(self.params)
        for index in sorted(range(len(self.params)), key=lambda i: self.params[i].nbytes, reverse=True):
            rank = load.index(min(load))
            owner[index] = rank
            load[rank] += self.params[index].nbytes
        return owner

    @torch.no_grad()
    def step(self) -> None:
        self.optimizer.step()
        for p, owner in zip(self.params, self.owner, strict=True):
            dist.broadcast(p, src=owner)

    def zero_grad(self) -> None:
        for p in self.params:
            p.grad = None
