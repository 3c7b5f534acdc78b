"""Five ways to get it wrong: nobody sends, half a state, none gathered, two that average, clipped too early.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_18_faults.py
Written by:  notebooks/18_sharded_optimizer.ipynb
"""

from dataclasses import dataclass

import torch
from lab_18_zero_1 import Zero1
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from shared.lesson_18 import shards
from shared.lesson_18.sharded_optimizer import ShardedOptimizer
from shared.runtime.errors import CourseError, ParityError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.run import run
from shared.training.parity import assert_all_equal, assert_same_on_every_rank, parameters


@dataclass(frozen=True)
class Config:
    layers: int = 8
    steps: int = 3


def build(group: Group, cfg: Config, stage: int = 1) -> tuple[nn.Module, ShardedOptimizer]:
    torch.manual_seed(0)
    layers = [nn.Linear(8, 8, dtype=torch.float64) for _ in range(cfg.layers)]
    net = nn.Sequential(*layers).to(group.device)
    return net, ShardedOptimizer(net.parameters(), torch.optim.Adam, stage, lr=0.05)


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int, group: Group) -> None:
    """A few steps, each rank on data of its own."""
    for step in range(steps):
        torch.manual_seed(10 * step + group.rank)
        optimizer.zero_grad()
        net(torch.randn(4, 8, dtype=torch.float64, device=group.device)).square().mean().backward()
        optimizer.step()


def reference(group: Group, cfg: Config) -> nn.Module:
    """Training without a break."""
    net, optimizer = build(group, cfg)
    train(net, optimizer, cfg.steps, group)
    train(net, optimizer, cfg.steps, group)
    return net


def without_sending(group: Group, cfg: Config) -> str:
    """Each rank steps its own parameters, and nobody sends them."""
    net, optimizer = build(group, cfg)
    real = shards.send_bucket
    shards.send_bucket = lambda *_: None
    try:
        train(net, optimizer, 1, group)
    finally:
        shards.send_bucket = real
    total = sum(p.sum().item() for p in net.parameters())
    print_in_rank_order(f"after a step in which nobody sends: parameters sum to {total:.4f}")
    try:
        assert_same_on_every_rank("parameter", parameters(net))
    except ParityError as error:
        return str(error)
    return "green"


def resumed(save_whole: bool, group: Group, cfg: Config) -> tuple[int, str]:
    """Train, save the optimizer, resume with what was saved; how many states, and what differs."""
    net, optimizer = build(group, cfg)
    train(net, optimizer, cfg.steps, group)
    if save_whole:
        optimizer.consolidate_state_dict(to=0)
    saved = [None]
    if group.rank == 0:  # rank 0 writes the file; all ranks read it
        own = {i: optimizer.state[p] for i, p in enumerate(net.parameters()) if p in optimizer.state}
        saved = [optimizer.state_dict()["state"] if save_whole else own]
    torch.distributed.broadcast_object_list(saved, src=0)
    again, optimizer = build(group, cfg)
    again.load_state_dict(net.state_dict())
    groups = [{**optimizer.param_groups[0], "params": list(range(2 * cfg.layers))}]
    optimizer.load_state_dict({"state": saved[0], "param_groups": groups})
    train(again, optimizer, cfg.steps, group)
    try:
        assert_all_equal("resumed", parameters(again), parameters(reference(group, cfg)), 1e-12)
        return len(saved[0]), "equal to the unbroken run"
    except ParityError as error:
        return len(saved[0]), str(error).split(" by ")[0]


def not_gathered(optimizer: torch.optim.Optimizer) -> str:
    """How it refuses to hand out a state."""
    try:
        optimizer.state_dict()
    except RuntimeError as error:
        return str(error).split(". ")[0]
    raise CourseError("state_dict() was to be refused")


def one_step_later(optimizer: torch.optim.Optimizer, ranks: int) -> str:
    """Ours refuses again. torch's hands out other ranks' state as it was when it was gathered."""
    if isinstance(optimizer, ShardedOptimizer):
        return not_gathered(optimizer)
    steps = sorted({int(state["step"]) for state in optimizer.state_dict()["state"].values()})
    assert steps[-1] == 2 and (steps[0] == 1 or ranks == 1), steps
    return f"hands out a state whose parameters have made {steps} steps"


def averaged_twice(group: Group, cfg: Config) -> str:
    """DDP around the model, and stage 2, which averages as well."""
    net, optimizer = build(group, cfg, stage=2)
    try:
        train(DistributedDataParallel(net), optimizer, 1, group)
    except RuntimeError as error:
        return str(error)
    raise CourseError("stage 2 inside DDP was to be refused")


def clipped_too_early(group: Group, cfg: Config) -> None:
    """Before ``step()`` torch's function sees this rank's own gradient; that of ``Zero1`` sees the mean."""
    net, _ = build(group, cfg)
    optimizer = Zero1(net.parameters(), torch.optim.Adam)
    torch.manual_seed(group.rank)
    net(torch.randn(4, 8, dtype=torch.float64, device=group.device)).square().mean().backward()
    of_rank = nn.utils.clip_grad_norm_(net.parameters(), 1e9).item()  # so much that nothing is clipped
    of_mean = optimizer.clip_grad_norm_(1e9).item()
    print_in_rank_order(
        f"norm of p.grad before step(): {of_rank:.5f}; of the averaged gradient: {of_mean:.5f}"
    )
    if (abs(of_rank - of_mean) < 1e-6) != (group.world_size == 1):
        raise CourseError("a rank's own gradient was to have another norm than the mean")


def main(cfg: Config) -> None:
    with process_group(timeout_s=60) as group:
        verdict = without_sending(group, cfg)
        print_on_rank_0(f"the check: {verdict}")
        print_on_rank_0("")
        for save_whole in (False, True):
            count, outcome = resumed(save_whole, group, cfg)
            how = "the whole state" if save_whole else "rank 0's own state"
            print_on_rank_0(f"{how}: {count} of {2 * cfg.layers} parameters; {outcome}")
            if (outcome == "equal to the unbroken run") != (save_whole or group.world_size == 1):
                raise CourseError(f"{how}: {outcome}, which is not what this lab shows")
        if (verdict == "green") != (group.world_size == 1):
            raise CourseError(f"nobody sends: {verdict}, which is not what this lab shows")
        net, optimizer = build(group, cfg)
        theirs = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam)
        for name, sharded in (("ours", optimizer), ("torch's", theirs)):
            refusal = not_gathered(sharded)
            assert "consolidate" in refusal, refusal
            print_on_rank_0(f"{name}, not gathered: {refusal}")
            train(net, sharded, 1, group)
            sharded.consolidate_state_dict(to=0)
            train(net, sharded, 1, group)
            if group.rank == 0:
                print(f"{name}, one step later: {one_step_later(sharded, group.world_size)}")
        print_on_rank_0(f"stage 2 inside DDP: {averaged_twice(group, cfg)}")
        print_on_rank_0("")
        clipped_too_early(group, cfg)


if __name__ == "__main__":
    run(main, Config())
