"""Ranks of unequal speed: who waits for whom, and which calls of DDP wait at all.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_12/proof_skew.py
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run


@dataclass(frozen=True)
class Config:
    rounds: int = 2  # steps = rounds * ranks, so that each rank has the same number of slow turns
    fast_s: float = 0.02
    slow_s: float = 0.12
    held_s: float = 0.5  # so long rank 0 stays away from a call that the others must wait in
    patience_s: float = 10.0  # so long it waits for the others to come through a call that needs nobody


def always_one(step: int, rank: int, ranks: int) -> bool:
    """The last rank is slow in each step."""
    return rank == ranks - 1


def in_turns(step: int, rank: int, ranks: int) -> bool:
    """In each step another rank is slow: over all steps they have equally much to do."""
    return rank == step % ranks


def paced_steps(slow: Callable, every: int, cfg: Config, group: Group) -> list[dict[str, float]]:
    """Sleep in place of computing; all-reduce a gradient after each ``every`` steps.

    Returns for each step when it ``began``, was ``ready`` to communicate, and was ``done``, in seconds of
    the machine's monotonic clock, which all ranks on it share.
    """
    steps = []
    dist.barrier()
    for step in range(cfg.rounds * group.world_size):
        began = time.monotonic()
        time.sleep(cfg.slow_s if slow(step, group.rank, group.world_size) else cfg.fast_s)
        ready = time.monotonic()
        if (step + 1) % every == 0:
            dist.all_reduce(torch.ones(1000, device=group.device))
            if group.device.type == "cuda":
                torch.cuda.synchronize()  # there, all_reduce returns before it is done
        steps.append({"began": began, "ready": ready, "done": time.monotonic()})
    return steps


def least_s(slow: Callable, every: int, cfg: Config, ranks: int) -> float:
    """What these steps take at least: from meeting to meeting all wait for the one with the most to do."""
    total = 0.0
    for first in range(0, cfg.rounds * ranks, every):
        work = [0.0] * ranks
        for step in range(first, min(first + every, cfg.rounds * ranks)):
            for rank in range(ranks):
                work[rank] += cfg.slow_s if slow(step, rank, ranks) else cfg.fast_s
        total += max(work)
    return total


def check_order(name: str, everyone: list[list[dict]], every: int, at_least_s: float) -> None:
    """Facts that hold however busy the machine is; raises ``CourseError`` if one does not."""
    for step in range(every - 1, len(everyone[0]), every):
        last_ready = max(steps[step]["ready"] for steps in everyone)
        if min(steps[step]["done"] for steps in everyone) < last_ready:
            raise CourseError(f"{name}, step {step}: a rank was done before the last one was ready")
    took_s = max(steps[-1]["done"] for steps in everyone) - min(steps[0]["began"] for steps in everyone)
    if took_s < at_least_s:
        raise CourseError(f"{name}: {took_s:.3f} s, but the sleeps alone take {at_least_s:.3f} s")


class Calls:
    """The calls of a training step, on a model without buffers and on one with batch norm."""

    def __init__(self, group: Group) -> None:
        self.device = group.device
        self.x = torch.ones(4, 8, device=group.device)
        self.plain = DistributedDataParallel(nn.Linear(8, 8).to(group.device))
        self.with_buffers = DistributedDataParallel(nn.BatchNorm1d(8).to(group.device))
        self.optimizer = torch.optim.SGD(self.plain.parameters(), 0.1)
        self.loss = torch.zeros(())

    def construct(self) -> None:
        DistributedDataParallel(nn.Linear(8, 8).to(self.device))

    def forward(self) -> None:
        self.loss = self.plain(self.x).sum()

    def forward_with_buffers(self) -> None:
        self.with_buffers(self.x)

    def backward(self) -> None:
        self.loss.backward()

    def step(self) -> None:
        self.optimizer.step()

    def in_order(self) -> list[tuple[str, Callable, bool]]:
        """(name, call, whether the others wait in it while rank 0 stays away)."""
        return [
            ("DDP(model)", self.construct, True),
            ("forward, no buffers", self.forward, False),
            ("forward, buffers", self.forward_with_buffers, True),
            ("backward", self.backward, True),
            ("optimizer.step", self.step, False),
            ("second forward", self.forward, True),  # DDP sends the buckets' new layout
            ("third forward", self.forward, False),
        ]


def others_wait(call: Callable, expected: bool, store: dist.Store, cfg: Config, group: Group) -> bool:
    """Let rank 0 stay away from ``call``. Do the others wait in it? Collective.

    Rank 0 asks the store whether all others came through. It asks for ``held_s`` if they are to wait, and
    for up to ``patience_s`` if not. So a slow machine cannot turn the answer.
    """
    through = [f"rank {rank} is through" for rank in range(1, group.world_size)]
    waited = False
    if group.rank == 0:
        limit = time.monotonic() + (cfg.held_s if expected else cfg.patience_s)
        waited = not store.check(through)
        while waited and time.monotonic() < limit:
            time.sleep(0.01)
            waited = not store.check(through)
    call()
    if group.rank:
        store.set(through[group.rank - 1], "yes")
    answer = torch.tensor([waited], dtype=torch.int64, device=group.device)
    dist.broadcast(answer, src=0)
    return bool(answer.item())


def check_speeds(cfg: Config, group: Group) -> dict[str, dict]:
    """Run three ways of being unequally fast; check each against the rule on paper."""
    n = group.world_size
    ways = {
        "one rank slow": (always_one, 1),
        "slow in turns": (in_turns, 1),
        "in turns, meet rarely": (in_turns, n),
    }
    recorded = {}
    for name, (slow, every) in ways.items():
        with record() as log:
            mine = paced_steps(slow, every, cfg, group)
        everyone = [None] * n
        dist.all_gather_object(everyone, mine)
        least = least_s(slow, every, cfg, n)
        check_order(name, everyone, every, least)
        recorded[name] = {"steps": mine, "every": every, "least_s": least}
        count = f"{len(mine)} steps, {log.count('all_reduce')} all-reduces"
        print_on_rank_0(f"{name:22} {count}: at least {least:.2f} s")
    return recorded


def check_calls(cfg: Config, group: Group) -> None:
    """Which calls of a training step wait for rank 0, and which do not."""
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    for number, (name, call, expected) in enumerate(Calls(group).in_order()):
        own = dist.PrefixStore(f"call {number}", store)
        if others_wait(call, expected, own, cfg, group) != expected:
            raise CourseError(f"{name}: expected that the others {'wait' if expected else 'pass'}")
        print_on_rank_0(f"{name:20} rank 0 is late: the others {'wait' if expected else 'proceed'}")


def main(cfg: Config) -> None:
    with process_group(smallest=2) as group:
        recorded = check_speeds(cfg, group)
        check_calls(cfg, group)
        record_results("12_skew", recorded)


if __name__ == "__main__":
    run(main, Config())
