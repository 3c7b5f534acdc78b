"""Calling the wrapped module instead of the wrapper: no error, and the replicas drift apart.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_08_bypass.py
Written by:  notebooks/08_ddp.ipynb
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shared.runtime.errors import CourseError, ParityError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.run import run
from shared.training.parity import assert_same_on_every_rank, parameters


@dataclass(frozen=True)
class Config:
    steps: int = 5


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


def main(cfg: Config) -> None:
    with process_group(timeout_s=20) as group:
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


if __name__ == "__main__":
    run(main, Config())
