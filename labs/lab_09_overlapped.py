"""A DDP by hand, third step: buckets of gradients are on their way while backward goes on.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_09_overlapped.py
Written by:  notebooks/09_ddp_inside.ipynb
"""

import weakref
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from shared.comm.broadcast import broadcast_from_rank_0
from shared.runtime.group import process_group
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.side_by_side import same_buckets, train_side_by_side


@dataclass(frozen=True)
class Config:
    tolerance: float = 1e-12  # float64
    cap: float = 0.005  # MiB: a small net, and yet several buckets
    caps: tuple[float | None, ...] = (None, 25, 1, 3)  # MiB, for 8 layers of 1 MiB


def fill_buckets(parameters: list[torch.Tensor], order: list[int], caps: tuple) -> list[list[int]]:
    """Fill buckets in this order, each with one dtype on one device, and close one when it *reaches* its
    cap in bytes: ``caps[0]`` for the first (in DDP: of each dtype), ``caps[1]`` for all others."""
    buckets, growing = [], {}
    for index in order:
        kind = (parameters[index].dtype, parameters[index].device)
        growing.setdefault(kind, []).append(index)
        if sum(parameters[i].nbytes for i in growing[kind]) >= caps[bool(buckets)]:
            buckets.append(growing.pop(kind))
    return buckets + list(growing.values())


class OverlappedDDP(nn.Module):
    """Data parallel training that communicates while backward goes on. Stands in for torch's DDP.

    When ``backward()`` returns, ``p.grad`` is the mean over the ranks and a view of a bucket, for each
    parameter p that some rank used. Other gradients stay as they were, as in DDP with
    ``find_unused_parameters=True``. What ``no_sync()`` gathered is averaged along.

    Args:
        module: the model, built alike on each rank. Its parameters and buffers become rank 0's.
        bucket_cap_mb: a bucket is full when it has so many MiB. None: the first at 1, the others at 25.
        process_group: the ranks that average their gradients; None for all.
        broadcast_buffers: whether each forward begins with rank 0's buffers; also as forward_sync_buffers.
        of_ddp: DDP's other options may be given, such as find_unused_parameters. They change nothing.

    Raises:
        ValueError: no parameter learns. Gradients must be dense, and each rank must use some parameter
        in each backward, or the others wait for it until the timeout.

    Shapes: a bucket is one-dimensional; the last one ends in one number per parameter: was it used?
    Source: Li et al., PyTorch Distributed, 2020, arXiv 2006.15704, sections 3.2 and 4.2.
    """

    def __init__(self, module, bucket_cap_mb=None, process_group=None, broadcast_buffers=True, **of_ddp):
        super().__init__()
        self.trainable = [p for p in module.parameters() if p.requires_grad]  # a tied one once
        if not self.trainable:
            raise ValueError("no parameter of the module requires a gradient")
        self.module, self.process_group = module, process_group
        self.ranks = dist.get_world_size(process_group)
        self.broadcast_buffers = of_ddp.get("forward_sync_buffers", broadcast_buffers)
        self.caps = (2**20, 25 * 2**20) if bucket_cap_mb is None else (bucket_cap_mb * 2**20,) * 2
        self.sync, self.sync_this, self.settled, self.works = True, True, False, []
        self.used: dict[int, None] = {}  # by this rank since the last all-reduce, in order of arrival
        broadcast_from_rank_0([*module.parameters(), *module.buffers()], process_group)
        self._make_buckets([*range(len(self.trainable))][::-1])  # a guess: what comes last is ready first
        me = weakref.ref(self)  # a hook that held self would make a reference cycle
        for index, parameter in enumerate(self.trainable):
            parameter.register_post_accumulate_grad_hook(lambda _, i=index: (ddp := me()) and ddp._ready(i))

    def _make_buckets(self, order: list[int]) -> None:
        self.buckets = fill_buckets(self.trainable, order, self.caps)
        self.memory, self.views = [], {}
        for bucket in self.buckets:
            sizes = [self.trainable[i].numel() for i in bucket]
            sizes.append(len(self.trainable) if bucket is self.buckets[-1] else 0)
            self.memory.append(self.trainable[bucket[0]].new_zeros(sum(sizes)))
            *parts, self.flags = self.memory[-1].split(sizes)
            self.views |= {i: part.view_as(self.trainable[i]) for i, part in zip(bucket, parts, strict=True)}

    def forward(self, *inputs, **kwargs):
        if self.broadcast_buffers and self.sync_this:  # as DDP: when the forward before this one synced
            broadcast_from_rank_0(self.module.buffers(), self.process_group)
        self.works = [work for work in self.works if not work.wait()]  # of a backward that broke off
        self.sync_this, self.missing = self.sync and torch.is_grad_enabled(), []
        return self.module(*inputs, **kwargs)

    def _ready(self, index: int) -> None:
        """Autograd calls this as soon as the gradient of a parameter is complete."""
        self.used[index] = None
        if self.sync_this:
            if not self.missing:  # the first of this backward
                self.missing, self.works = [set(bucket) for bucket in self.buckets], []
                torch.autograd.Variable._execution_engine.queue_callback(self._finish)  # called in the end
            self._put(index)

    @torch.no_grad()
    def _put(self, index: int) -> None:
        """Put a gradient into its bucket. Launch what is full, but in turn: in one order on all ranks."""
        parameter, view = self.trainable[index], self.views[index]
        if parameter.grad is None:
            view.zero_()
        else:
            parameter.grad = torch.div(parameter.grad, self.ranks, out=view)
        next(missing for missing in self.missing if index in missing).remove(index)
        while (turn := len(self.works)) < len(self.buckets) and not self.missing[turn]:
            self.flags.copy_(torch.tensor([i in self.used for i in range(len(self.trainable))]))
            self.works.append(dist.all_reduce(self.memory[turn], group=self.process_group, async_op=True))

    def _finish(self) -> None:
        for index in [i for missing in self.missing for i in sorted(missing)]:  # not used by this rank
            self._put(index)
        self.works = [work for work in self.works if not work.wait()]
        for index, users in enumerate(self.flags.tolist()):
            if users and self.trainable[index].grad is None:
                self.trainable[index].grad = self.views[index]
        if not self.settled:  # from now on, buckets follow the order in which rank 0's gradients came
            order = [*dict.fromkeys([*self.used, *range(len(self.trainable))[::-1]])]
            broadcast_from_rank_0(
                [order := torch.tensor(order, device=self.flags.device)], self.process_group
            )
            self._make_buckets(order.tolist())
        self.settled, self.used, self.missing, self.works = True, {}, [], []

    @contextmanager
    def no_sync(self):
        """What is forwarded in here adds to this rank's gradients only."""
        before, self.sync = self.sync, False
        try:
            yield
        finally:
            self.sync = before


def main(cfg: Config) -> None:
    with process_group(timeout_s=20) as group:
        result = train_side_by_side(lambda net: OverlappedDDP(net, cfg.cap), group, tolerance=cfg.tolerance)
        layouts = same_buckets(OverlappedDDP, group, cfg.caps)
        record_results("lab_09_overlapped", result._asdict() | {"layouts": layouts})


if __name__ == "__main__":
    run(main, Config())
