# rejected: still has its old value here
"""The owners keep the new values to themselves."""

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
        for p, owner in zip(self.params, self.owner, strict=True):
            gradient = torch.zeros_like(p) if p.grad is None else p.grad
            dist.reduce(gradient, dst=owner)
            if owner == self.rank:
                p.grad = gradient / self.ranks
        self.optimizer.step()

    def zero_grad(self) -> None:
        for p in self.params:
            p.grad = None
