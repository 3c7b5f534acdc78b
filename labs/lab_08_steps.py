"""The loop of lab_08_loader equals one process after every step, and a step averages once.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_08_steps.py
Written by:  notebooks/08_ddp.ipynb (edit it there)
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn.functional as F
from lab_08_loader import MICRO_BATCH, MICRO_BATCHES, build, make_loader, points, train_epoch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.parity import assert_all_equal, gradients, parameters


@dataclass(frozen=True)
class Config:
    seed: int = 7
    epochs: int = 2
    learning_rate: float = 0.01
    cap_mb: float = 0.01  # small, so that there are several buckets
    tolerance: float = 1e-12  # float64


@dataclass
class Watched:
    """A loader that keeps what it has given out: x (rows, 2) and y (rows,) of each micro-batch."""

    loader: DataLoader
    given: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    @property
    def sampler(self) -> torch.utils.data.Sampler:
        return self.loader.sampler

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        self.given = []
        for x, y in self.loader:
            self.given.append((x, y))
            yield x, y


def joined(tensor: torch.Tensor, group: Group) -> torch.Tensor:
    """The tensors of all ranks, one after the other. Collective."""
    tensor = tensor.to(group.device)
    parts = [torch.empty_like(tensor) for _ in range(group.world_size)]
    dist.all_gather(parts, tensor)
    return torch.cat(parts)


def reference(cfg: Config, group: Group) -> tuple[nn.Module, torch.optim.Optimizer]:
    """One process, from rank 0's seed."""
    torch.manual_seed(cfg.seed)
    model = build().double().to(group.device)
    return model, torch.optim.Adam(model.parameters(), cfg.learning_rate)


def wrapped(cfg: Config, group: Group) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    torch.manual_seed(cfg.seed + group.rank)
    model = build().double().to(group.device)
    ddp = DistributedDataParallel(model, bucket_cap_mb=cfg.cap_mb)
    return ddp, torch.optim.Adam(ddp.parameters(), cfg.learning_rate)


def check_parity(data: TensorDataset, cfg: Config, group: Group) -> None:
    """Train by the plain lab's loop, and after each step one process on all that the ranks were given.

    Raises:
        ParityError: after some step, a gradient or a parameter is not that of one process.
        CourseError: a point went to two ranks, or two epochs have the same order.
    """
    alone, alone_optimizer = reference(cfg, group)
    ddp, optimizer = wrapped(cfg, group)
    loader = Watched(make_loader(data))
    steps = 0

    def compare(*_) -> None:
        """The optimizer has just made its step, and its gradients are still there."""
        nonlocal steps
        steps += 1
        own_x, own_y = zip(*loader.given[-MICRO_BATCHES:], strict=True)
        x, y = joined(torch.cat(own_x), group), joined(torch.cat(own_y), group)
        if len(x) != group.world_size * MICRO_BATCHES * MICRO_BATCH or len(x.unique(dim=0)) != len(x):
            raise CourseError("in a step each point should be on one rank, in one micro-batch")
        alone_optimizer.zero_grad()
        F.cross_entropy(alone(x), y).backward()
        alone_optimizer.step()
        assert_all_equal("gradient", gradients(ddp), gradients(alone), cfg.tolerance)
        assert_all_equal("parameter", parameters(ddp), parameters(alone), cfg.tolerance)

    optimizer.register_step_post_hook(compare)
    orders = []
    for epoch in range(cfg.epochs):
        train_epoch(ddp, optimizer, loader, epoch)
        orders.append(torch.cat([x for x, _ in loader.given]))
    if torch.equal(orders[0], orders[1]):
        raise CourseError("two epochs have the same order")
    print_on_rank_0(f"equal to one process after each of {steps} steps, to {cfg.tolerance:.0e}")
    print_on_rank_0(f"a step has {MICRO_BATCHES} micro-batches; the second epoch has another order")


def all_reduces_of_an_epoch(synchronized: bool, loader: DataLoader, cfg: Config, group: Group) -> int:
    """How often the plain lab's loop all-reduces, as it is or without its ``no_sync``. Collective."""
    ddp, optimizer = wrapped(cfg, group)
    if synchronized:
        ddp.no_sync = nullcontext
    train_epoch(ddp, optimizer, loader, 0)  # DDP settles its buckets after the first step
    with record() as log:
        train_epoch(ddp, optimizer, loader, 1)
    return log.count("all_reduce")


def buckets_of(cfg: Config, group: Group) -> int:
    """All-reduces of one backward, without any accumulation. Collective."""
    ddp, _ = wrapped(cfg, group)
    x = torch.ones(4, 2, dtype=torch.float64, device=group.device)
    for _ in range(2):  # DDP settles its buckets after the first step
        ddp(x).sum().backward()
    with record() as log:
        ddp(x).sum().backward()
    return log.count("all_reduce")


def main(cfg: Config) -> None:
    with process_group(timeout_s=60) as group:
        x, y = points().tensors
        data = TensorDataset(x.double(), y)
        check_parity(data, cfg, group)
        buckets = buckets_of(cfg, group)
        loader = make_loader(data)
        steps = len(loader) // MICRO_BATCHES
        counted = [all_reduces_of_an_epoch(on, loader, cfg, group) for on in (False, True)]
        if buckets < 2 or counted != [steps * buckets, len(loader) * buckets]:
            raise CourseError(
                f"{buckets} buckets, {steps} steps: {counted} all-reduces with, without no_sync"
            )
        print_on_rank_0(f"{buckets} buckets, {steps} steps of {MICRO_BATCHES} micro-batches:")
        print_on_rank_0(
            f"{counted[0]} all-reduces, one for each bucket and step; without no_sync {counted[1]}"
        )


if __name__ == "__main__":
    run(main, Config())
