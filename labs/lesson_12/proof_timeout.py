"""What a timeout does when a rank comes late, and what it does not do.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_12/proof_timeout.py
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from shared.runtime.errors import CourseError, neighbour_is_gone
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.run import run

TIMED_OUT = "Timed out waiting {:.0f}ms"  # "... for recv operation to complete", or for send operation
CLOSED = "the connection is closed"


@dataclass(frozen=True)
class Config:
    timeout_s: float = 3.0  # the default of gloo is 30 minutes
    pause_s: float = 0.4  # shorter than the timeout ...
    pauses: int = 8  # ... but not all of them together


def gloo_group(timeout_s: float) -> dist.ProcessGroup:
    """All ranks once more, with a timeout of its own. What breaks in it breaks no other group."""
    return dist.new_group(timeout=timedelta(seconds=timeout_s), backend="gloo")


def said_by(function: Callable, *args, **kwargs) -> str:
    """What gloo says when ``function`` fails, without the place in its source; "done" if it does not."""
    try:
        function(*args, **kwargs)
    except RuntimeError as error:
        text = str(error).splitlines()[0]
        if neighbour_is_gone(text):
            return CLOSED
        for direction in ("recv", "send"):
            text = text.removesuffix(f" for {direction} operation to complete")
        return text.rpartition("] ")[2]
    return "done"


def add_ones(pg: dist.ProcessGroup) -> None:
    """One all-reduce, and its sum is right."""
    x = torch.ones(2)
    dist.all_reduce(x, group=pg)
    if x.tolist() != [dist.get_world_size()] * 2:
        raise CourseError(f"the sum is {x.tolist()}")


def show(what: str, said: str, *expected: str) -> list[str]:
    """Print what each rank said, and return it. Collective. ``said`` must begin as one of ``expected``."""
    print_on_rank_0(f"{what}:")
    print_in_rank_order(f"  {said}")
    if not said.startswith(expected):
        raise CourseError(f"{what}: {said!r}, expected {expected}")
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, said)
    return everyone


def too_late(cfg: Config, group: Group) -> None:
    """The last rank comes when the others have given up; then all try again, and once more in a new group."""
    last = group.rank == group.world_size - 1
    pg = gloo_group(cfg.timeout_s)
    if last:
        dist.barrier()  # in the default group: the others come to it after they have given up
        outcome = said_by(add_ones, pg)  # nobody has ended this rank meanwhile
        expected = (CLOSED,)
    else:
        outcome = said_by(add_ones, pg)
        expected = (TIMED_OUT.format(1000 * cfg.timeout_s), CLOSED)
        dist.barrier()
    everyone = show(f"timeout {cfg.timeout_s:g} s, the last rank comes later", outcome, *expected)
    # Of several that wait, one may give up a moment earlier, and the others hear that. One says why.
    assert TIMED_OUT.format(1000 * cfg.timeout_s) in everyone
    show("the same group, all in time", said_by(add_ones, pg), CLOSED)
    show("a new group", said_by(add_ones, gloo_group(cfg.timeout_s)), "done")


def many_short_waits(cfg: Config, group: Group) -> None:
    """The timeout bounds the wait in one collective, not that of a step or a run."""
    pg = gloo_group(cfg.timeout_s)
    for _ in range(cfg.pauses):
        if group.rank == group.world_size - 1:
            time.sleep(cfg.pause_s)
        add_ones(pg)
    waited_s = cfg.pauses * cfg.pause_s  # at least: no sleep is shorter than asked for
    assert waited_s > cfg.timeout_s
    print_on_rank_0(
        f"timeout {cfg.timeout_s:g} s, {cfg.pauses} waits of {cfg.pause_s:g} s, in all {waited_s:g} s: fine"
    )


def main(cfg: Config) -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        too_late(cfg, group)
        many_short_waits(cfg, group)


if __name__ == "__main__":
    run(main, Config())
