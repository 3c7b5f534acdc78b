"""Three ways to go wrong with DDP: past the wrapper, a checkpoint that runs backward itself, one rank alone.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_08_faults.py
Written by:  notebooks/08_ddp.ipynb
"""

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from shared.runtime.errors import CourseError, ParityError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.run import run
from shared.training.parity import assert_same_on_every_rank, parameters


@dataclass(frozen=True)
class Config:
    steps: int = 5
    patience_s: float = 3  # how long rank 0 waits for ranks that never come


def train(bypass: bool, cfg: Config, group: Group) -> nn.Module:
    """A few steps on this rank's own data, through the wrapper or past it."""
    torch.manual_seed(group.rank)
    model = nn.Linear(16, 4, dtype=torch.float64).to(group.device)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    for _ in range(cfg.steps):
        x = torch.randn(8, 16, dtype=torch.float64, device=group.device)
        called = ddp.module if bypass else ddp
        optimizer.zero_grad()
        called(x).square().mean().backward()
        optimizer.step()
    return ddp


def past_the_wrapper(cfg: Config, group: Group) -> None:
    """Compare the replicas after training through the wrapper, and after training past it."""
    for bypass in (False, True):
        ddp = train(bypass, cfg, group)
        total = sum(p.sum().item() for p in ddp.parameters())
        way = "ddp.module(x)" if bypass else "ddp(x)"
        print_in_rank_order(f"after {cfg.steps} steps of {way}: parameters sum to {total:.4f}")
        try:
            assert_same_on_every_rank(way, parameters(ddp))
            verdict = "the replicas are equal"
        except ParityError as error:
            verdict = f"the check is red: {error}"
        print_on_rank_0(f"{way}: {verdict}")
        drifts = bypass and group.world_size > 1
        if drifts != verdict.startswith("the check is red"):
            raise CourseError(f"{way}: {verdict}, which is not what this lab shows")


def on_rank_0_only(cfg: Config, group: Group) -> None:
    """``if rank == 0:`` around forward and backward: rank 0 waits for all-reduces that nobody joins."""
    patience = timedelta(seconds=cfg.patience_s)
    members = dist.new_group(timeout=patience)  # a group of its own: it is unusable afterwards
    ddp = DistributedDataParallel(nn.Linear(8, 8).to(group.device), process_group=members)
    error = None
    if group.rank == 0:
        try:
            ddp(torch.ones(4, 8, device=group.device)).sum().backward()
        except RuntimeError as caught:
            error = str(caught).splitlines()[0]
    waits = group.world_size > 1 and group.backend == "gloo"  # nccl: a watchdog ends the process instead
    if group.rank == 0 and waits != (error is not None and "Timed out" in error):
        raise CourseError(f"rank 0 alone: {error}, which is not what this lab shows")
    if waits:
        print_on_rank_0(f"rank 0 alone in backward: no answer within {cfg.patience_s:g} s, then an error")


class Checkpointed(nn.Module):
    """Recomputes a layer in backward, and never uses another: (batch, 8) to (batch, 8)."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.layer = nn.Linear(8, 8)
        self.unused = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.layer, x, use_reentrant=self.reentrant)


def ready_twice(group: Group) -> None:
    """A reentrant checkpoint hides its layers from DDP's search in the graph: they look unused at first."""
    for reentrant in (True, False):
        model = Checkpointed(reentrant).to(group.device)
        ddp = DistributedDataParallel(model, find_unused_parameters=True)
        x = torch.ones(4, 8, device=group.device, requires_grad=True)
        verdict = "no error"
        try:
            ddp(x).sum().backward()
        except RuntimeError as error:
            verdict = str(error).splitlines()[0]
        print_on_rank_0(f"checkpoint(use_reentrant={reentrant}): {verdict.split('. ')[0]}")
        if reentrant != ("ready only once" in verdict):
            raise CourseError(f"use_reentrant={reentrant}: {verdict}, which is not what this lab shows")


def main(cfg: Config) -> None:
    with process_group(timeout_s=20) as group:
        past_the_wrapper(cfg, group)
        ready_twice(group)
        on_rank_0_only(cfg, group)


if __name__ == "__main__":
    run(main, Config())
