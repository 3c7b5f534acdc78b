# accepted: gradients and parameters of an owner travel together, without waiting
"""One flat tensor for each owner."""

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
        works = []
        flats = []
        for rank in range(self.ranks):
            owned = [p for p, owner in zip(self.params, self.owner, strict=True) if owner == rank]
            parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in owned]
            flat = torch.cat([part.flatten() for part in parts])
            works.append(dist.reduce(flat, dst=rank, async_op=True))
            flats.append((owned, flat))
        for work in works:
            work.wait()
        owned, flat = flats[self.rank]
        for p, part in zip(owned, flat.split([p.numel() for p in owned]), strict=True):
            p.grad = part.view_as(p) / self.ranks
        self.optimizer.step()
        for rank, (owned, flat) in enumerate(flats):
            if rank == self.rank:
                flat = torch.cat([p.flatten() for p in owned])
            dist.broadcast(flat, src=rank)
            for p, part in zip(owned, flat.split([p.numel() for p in owned]), strict=True):
                p.copy_(part.view_as(p))

    def zero_grad(self) -> None:
        for p in self.params:
            p.grad = None
