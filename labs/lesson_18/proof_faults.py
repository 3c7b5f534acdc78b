"""Four mistakes: rank 0's state alone is saved, none is gathered, an old one is saved, nothing is stepped.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_18/proof_faults.py
"""

import logging
import warnings
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import gather_on_rank_0, print_on_rank_0
from shared.runtime.run import run
from shared.training.parity import assert_all_equal, parameters

from lab_18_zero_1 import Zero1


@dataclass(frozen=True)
class Config:
    layers: int = 8
    steps: int = 3


def build_model(group: Group, cfg: Config) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(8, 8, dtype=torch.float64) for _ in range(cfg.layers)]
    return nn.Sequential(*layers).to(group.device)


def build(group: Group, cfg: Config) -> tuple[DistributedDataParallel, ZeroRedundancyOptimizer]:
    ddp = DistributedDataParallel(build_model(group, cfg))
    return ddp, ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, lr=0.05)


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int, group: Group) -> None:
    """A few steps, each rank on data of its own."""
    for step in range(steps):
        torch.manual_seed(10 * step + group.rank)
        optimizer.zero_grad()
        net(torch.randn(4, 8, dtype=torch.float64, device=group.device)).square().mean().backward()
        optimizer.step()


def reference(group: Group, cfg: Config) -> nn.Module:
    """Training without a break."""
    ddp, optimizer = build(group, cfg)
    train(ddp, optimizer, cfg.steps, group)
    train(ddp, optimizer, cfg.steps, group)
    return ddp.module


def resumed(group: Group, cfg: Config) -> None:
    """Train, gather and save the optimizer, resume with what was saved: equal to training without a break."""
    ddp, optimizer = build(group, cfg)
    train(ddp, optimizer, cfg.steps, group)
    optimizer.consolidate_state_dict(to=0)
    saved = [optimizer.state_dict() if group.rank == 0 else None]  # rank 0 writes the file
    dist.broadcast_object_list(saved, src=0)  # all ranks read it
    again, optimizer = build(group, cfg)
    again.load_state_dict(ddp.state_dict())
    optimizer.load_state_dict(saved[0])
    train(again, optimizer, cfg.steps, group)
    assert_all_equal("resumed", parameters(again.module), parameters(reference(group, cfg)), 1e-12)
    count = len(saved[0]["state"])
    print_on_rank_0(
        f"gathered: the state of {count} of {2 * cfg.layers} parameters; resumed as without a break"
    )


def refused_by_torch(group: Group, cfg: Config) -> None:
    """torch's class refuses the state of its inner optimizer, which has this rank's parameters alone."""
    ddp, optimizer = build(group, cfg)
    train(ddp, optimizer, 1, group)
    saved = [optimizer.optim.state_dict()]
    dist.broadcast_object_list(saved, src=0)
    try:
        optimizer.load_state_dict(saved[0])
    except ValueError as error:
        outcome = f"refused: {error}"
    else:
        outcome = "loaded"
    if (outcome == "loaded") != (group.world_size == 1):
        raise CourseError(f"rank 0's own state, in torch's class: {outcome}")
    print_on_rank_0(f"rank 0's own state, in torch's class: {outcome}")


def of_rank_0(group: Group, cfg: Config) -> None:
    """Each rank's ``Zero1`` loads rank 0's part: its shards have the same numbers, so nothing complains."""
    net = build_model(group, cfg)
    ours = Zero1(net.parameters(), partial(torch.optim.Adam, lr=0.05))
    train(net, ours, cfg.steps, group)
    own = ours.state[ours.shards[0]]["exp_avg"].clone()
    saved = [ours.state_dict()]
    dist.broadcast_object_list(saved, src=0)
    ours.load_state_dict(saved[0])
    foreign = not torch.equal(ours.state[ours.shards[0]]["exp_avg"], own)
    found = gather_on_rank_0(foreign)
    if group.rank == 0:
        if found != [rank > 0 for rank in range(group.world_size)]:
            raise CourseError(f"Zero1: ranks that have moments of another rank: {found}")
        print(
            f"rank 0's own state, in Zero1: loaded; {sum(found)} of {len(found)} ranks have another's moments"
        )


def not_gathered(group: Group, cfg: Config) -> None:
    """Without ``consolidate_state_dict`` torch's class refuses; later it returns what it gathered last."""
    ddp, optimizer = build(group, cfg)
    try:
        optimizer.state_dict()
    except RuntimeError as error:
        print_on_rank_0(f"not gathered: {str(error).split('. ')[0]}")
    else:
        raise CourseError("state_dict() should have been refused")
    train(ddp, optimizer, 1, group)
    optimizer.consolidate_state_dict(to=0)
    train(ddp, optimizer, 1, group)
    if group.rank == 0:
        steps = sorted({int(state["step"]) for state in optimizer.state_dict()["state"].values()})
        if steps != ([2] if group.world_size == 1 else [1, 2]):
            raise CourseError(f"the state's parameters have made {steps} steps")
        print(f"one step later: returns a state whose parameters have made {steps} steps")


def overlap_alone(group: Group, cfg: Config) -> None:
    """With ``overlap_with_ddp=True`` the steps belong in a hook of DDP; ``step()`` logs a warning."""
    logging.getLogger("torch.distributed.optim.zero_redundancy_optimizer").setLevel(logging.ERROR)
    ddp = DistributedDataParallel(build_model(group, cfg))
    overlap = {"overlap_with_ddp": True}
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, lr=0.05, **overlap)
    before = [p.detach().clone() for p in ddp.parameters()]
    train(ddp, optimizer, cfg.steps, group)
    moved = sum(not torch.equal(p, old) for p, old in zip(ddp.parameters(), before, strict=True))
    if moved:
        raise CourseError(f"overlap_with_ddp=True alone has moved {moved} parameters")
    print_on_rank_0(
        f"overlap_with_ddp=True alone: {cfg.steps} steps have moved {moved} of {len(before)} parameters"
    )


def main(cfg: Config) -> None:
    with process_group(timeout_s=60) as group, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        of_rank_0(group, cfg)
        refused_by_torch(group, cfg)
        resumed(group, cfg)
        not_gathered(group, cfg)
        overlap_alone(group, cfg)


if __name__ == "__main__":
    run(main, Config())
