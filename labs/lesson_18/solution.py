"""Exercise 18: ZeRO-1, an optimizer whose state is divided among the ranks."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn


class ZeRO1:
    """Each trainable parameter, whole, belongs to one rank, which alone keeps its optimizer state.

    Args:
        params: the parameters of a model, equal on all ranks and in the same order. Some are frozen.
        optimizer_class: any of torch.optim, also one that looks at rows and columns of a matrix.
        options: of that class, such as ``lr=0.01``.

    ``owner[i]`` is the rank that ``params[i]`` belongs to; ``optimizer`` is this rank's, for what it owns.
    """

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
        """Return the owner of each of ``self.params``. All ranks come to the same result, without a message.

        The fullest rank owns at most 10 % more bytes than total / ranks.
        """
        # solution: begin
        load = [0] * self.ranks
        owner = [0] * len(self.params)
        for index in sorted(range(len(self.params)), key=lambda i: self.params[i].nbytes, reverse=True):
            rank = load.index(min(load))
            owner[index] = rank
            load[rank] += self.params[index].nbytes
        return owner
        # solution: end

    def used(self) -> list[bool]:
        """Whether any rank has a gradient of each of ``self.params``. All ranks must call it."""
        here = [p.grad is not None for p in self.params]
        flags = torch.tensor(here, dtype=torch.int32, device=self.params[0].device)
        dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        return flags.bool().tolist()

    @torch.no_grad()
    def step(self) -> None:
        """Make the step that one process would make with the mean of the ranks' gradients.

        ``p.grad`` holds this rank's gradient. It is None where this rank did not use a parameter: that counts
        as zeros if another rank used it. What no rank used is left alone, also by weight decay. After the
        step all ranks have all new values. A rank sends hardly more than in DDP's all-reduce, 2 (N - 1) / N
        times the bytes of the trainable parameters.
        """
        used = self.used()
        owner_of = {p: owner for p, owner, flag in zip(self.params, self.owner, used, strict=True) if flag}
        # solution: begin
        for p, owner in owner_of.items():
            gradient = torch.zeros_like(p) if p.grad is None else p.grad
            dist.reduce(gradient, dst=owner)
            if owner == self.rank:
                p.grad = gradient / self.ranks
        self.optimizer.step()
        for p, owner in owner_of.items():
            dist.broadcast(p, src=owner)
        # solution: end

    def zero_grad(self) -> None:
        for p in self.params:
            p.grad = None
