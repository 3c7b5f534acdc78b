"""The script of lab_08_ddp equals one process after every step, and a step averages once.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_08/proof_equal.py
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.run import run
from shared.training.data import load_images
from shared.training.parity import assert_all_equal, assert_same_on_every_rank, gradients, parameters

from lab_08_ddp import MICRO_BATCH, MICRO_BATCHES, evaluate, make_loader, save, train_epoch, wrap


@dataclass(frozen=True)
class Config:
    seed: int = 7
    epochs: int = 2
    learning_rate: float = 0.01
    cap_mb: float = 0.001  # small, so that there are several buckets
    tolerance: float = 1e-12  # float64


class TiedNet(nn.Module):
    """A classifier of digits with a weight used twice and a layer that does not learn.

    Input (batch, 1, 8, 8), output (batch, 10) scores.
    """

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(64, 32).requires_grad_(False)
        self.first = nn.Linear(32, 32)
        self.second = nn.Linear(32, 32)
        self.second.weight = self.first.weight  # tied
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.frozen(x.flatten(1))
        x = torch.tanh(self.first(x))
        x = torch.tanh(self.second(x))
        return self.head(x)


@dataclass
class Watched:
    """A loader that keeps what it has given out: x (rows, 1, 8, 8) and y (rows,) of each micro-batch."""

    loader: DataLoader
    given: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    @property
    def sampler(self) -> torch.utils.data.Sampler:
        return self.loader.sampler

    def __len__(self) -> int:
        return len(self.loader)

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
    model = TiedNet().double().to(group.device)
    return model, torch.optim.Adam(model.parameters(), cfg.learning_rate)


def wrapped(cfg: Config, group: Group) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    """Another model on each rank, made equal by the script's ``wrap``."""
    torch.manual_seed(cfg.seed + group.rank)
    ddp = wrap(TiedNet().double().to(group.device), group.device)
    return ddp, torch.optim.Adam(ddp.parameters(), cfg.learning_rate)


def check_start(cfg: Config, group: Group) -> None:
    """DDP's constructor sends rank 0's parameters to all.

    Raises:
        ParityError: after it, a parameter is not that of one process, to the last bit.
    """
    torch.manual_seed(cfg.seed + group.rank)
    before = sum(p.sum().item() for p in TiedNet().double().parameters())
    ddp, _ = wrapped(cfg, group)
    after = sum(p.sum().item() for p in ddp.parameters())
    print_in_rank_order(f"sum of parameters: {before:8.4f} before DDP(model), {after:8.4f} after")
    alone, _ = reference(cfg, group)
    assert_all_equal("after construction", parameters(ddp), parameters(alone), 0.0)


def check_training(train_set: TensorDataset, test_set: TensorDataset, cfg: Config, group: Group) -> None:
    """Train by the script's loop, and after each step one process on all that the ranks were given.

    Raises:
        ParityError: after some step, a gradient or a parameter is not that of one process.
        CourseError: an image went to two ranks, two epochs have the same order, or the score is another.
    """
    alone, alone_optimizer = reference(cfg, group)
    ddp, optimizer = wrapped(cfg, group)
    loader = Watched(make_loader(train_set))
    differences = []

    def compare(*_) -> None:
        """The optimizer has just made its step, and its gradients are still there."""
        own_x, own_y = zip(*loader.given[-MICRO_BATCHES:], strict=True)
        x, y = joined(torch.cat(own_x), group), joined(torch.cat(own_y), group)
        expected = group.world_size * MICRO_BATCHES * MICRO_BATCH
        if len(x) != expected or len(x.flatten(1).unique(dim=0)) != expected:
            raise CourseError("in a step each image should be on one rank, in one micro-batch")
        alone_optimizer.zero_grad()
        F.cross_entropy(alone(x), y).backward()
        alone_optimizer.step()
        differences.append(assert_all_equal("gradient", gradients(ddp), gradients(alone), cfg.tolerance))
        assert_all_equal("parameter", parameters(ddp), parameters(alone), cfg.tolerance)

    optimizer.register_step_post_hook(compare)
    orders = []
    for epoch in range(cfg.epochs):
        train_epoch(ddp, optimizer, loader, epoch)
        orders.append(torch.cat([x for x, _ in loader.given]))
    if torch.equal(orders[0], orders[1]):
        raise CourseError("two epochs have the same order")
    assert_same_on_every_rank("after training", parameters(ddp))
    steps = len(differences)
    epochs = f"{cfg.epochs} epochs of {steps // cfg.epochs}"
    print_on_rank_0(
        f"after each of {steps} steps ({epochs}) gradients equal one process's to {max(differences):.0e}"
    )

    test_x, test_y = (tensor.to(group.device) for tensor in test_set.tensors)
    expected = (int((alone(test_x).argmax(1) == test_y).sum()), len(test_y))
    counted = evaluate(ddp.module, test_set)
    if counted != expected:
        raise CourseError(f"evaluate counts {counted}, one process {expected}")
    norm = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64)).double().to(group.device)
    norm[1].running_mean += group.rank  # ranks differ after a training step
    for training in (True, False):
        norm.train(training)
        evaluate(norm, test_set)
        if norm[1].training != training:
            raise CourseError(f"evaluate found training={training}, and left training={not training}")
    assert_same_on_every_rank("evaluate", list(norm.named_buffers()))
    print_on_rank_0(f"evaluate sees each of {len(test_y)} test images once, and counts what one process does")
    check_saving(ddp)


def check_saving(ddp: DistributedDataParallel) -> None:
    """All ranks read what rank 0 saved into a model without DDP. Collective."""
    path = Path(tempfile.gettempdir()) / f"proof_equal_{os.environ['MASTER_PORT']}.pt"
    save(ddp, path)
    read = TiedNet().double()
    read.load_state_dict(torch.load(path, map_location="cpu"))
    assert_all_equal("the file", parameters(read), [(name, p.cpu()) for name, p in parameters(ddp)], 0.0)
    dist.barrier()  # before rank 0 removes it
    path.unlink(missing_ok=True)
    print_on_rank_0("the file holds the trained model, and is read without DDP")


def communication_of_an_epoch(
    synchronized: bool, loader: DataLoader, cfg: Config, group: Group
) -> tuple[dict[str, int], int]:
    """What the script's loop calls, and the bytes that it passes to these calls. Collective.

    ``synchronized``: without its ``no_sync``.
    """
    torch.manual_seed(cfg.seed)
    ddp = DistributedDataParallel(TiedNet().double().to(group.device), bucket_cap_mb=cfg.cap_mb)
    optimizer = torch.optim.Adam(ddp.parameters(), cfg.learning_rate)
    if synchronized:
        ddp.no_sync = nullcontext
    train_epoch(ddp, optimizer, loader, 0)  # DDP settles its buckets after the first step
    with record() as log:
        train_epoch(ddp, optimizer, loader, 1)
    return dict(log.counts()), log.bytes()


def check_communication(train_set: TensorDataset, cfg: Config, group: Group) -> None:
    """A step hands each gradient to one all-reduce, and communicates nothing else.

    Raises:
        CourseError: it does not.
    """
    loader = make_loader(train_set)
    steps = len(loader) // MICRO_BATCHES
    model, _ = reference(cfg, group)
    whole = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    calls, handed_in = communication_of_an_epoch(False, loader, cfg, group)
    buckets, left = divmod(calls.get("all_reduce", 0), steps)
    if left or buckets < 2 or set(calls) != {"all_reduce"} or handed_in != steps * whole:
        raise CourseError(f"{steps} steps of {whole:,} bytes: {calls} with {handed_in:,} bytes")
    synchronized, _ = communication_of_an_epoch(True, loader, cfg, group)
    if synchronized != {"all_reduce": MICRO_BATCHES * calls["all_reduce"]}:
        raise CourseError(f"without no_sync each micro-batch should all-reduce, not {synchronized}")
    print_on_rank_0(f"{buckets} buckets, {steps} steps of {MICRO_BATCHES} micro-batches:")
    counted = f"{calls['all_reduce']} all-reduces, one for each bucket and step"
    print_on_rank_0(f"{counted}; without no_sync {synchronized['all_reduce']}")
    print_on_rank_0(f"a step passes {handed_in // steps:,} bytes to all-reduces: each gradient once")


def main(cfg: Config) -> None:
    with process_group(timeout_s=60) as group:
        data = load_images("digits")
        train_set = TensorDataset(data.train_x.double(), data.train_y)
        test_set = TensorDataset(data.test_x.double(), data.test_y)
        check_start(cfg, group)
        check_training(train_set, test_set, cfg, group)
        check_communication(train_set, cfg, group)


if __name__ == "__main__":
    run(main, Config())
