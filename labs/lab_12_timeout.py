"""What a timeout does when a rank comes late, what it does not do, and how to learn who is missing.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_12_timeout.py
Written by:  notebooks/12_uneven_inputs.ipynb
"""

import os
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.run import run

TIMED_OUT = "Timed out waiting {:.0f}ms"  # "... for recv operation to complete", or for send operation
CLOSED = (
    "the connection is closed"  # gloo has several texts for it; which one is heard, depends on the moment
)
TEXTS_OF_CLOSED = ("onnection closed", "onnection reset", "pair closure", "Broken pipe", "onnection refused")


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
        if any(one in text for one in TEXTS_OF_CLOSED):
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


def on_record() -> str:
    """The last call of this rank in the flight recorder: what it was, its state, where it was made."""
    entry = pickle.loads(torch._C._distributed_c10d._dump_fr_trace())["entries"][-1]
    where = next(frame["name"] for frame in entry["frames"] if "lab_12" in frame["filename"])
    return f"{entry['profiling_name']} of {entry['input_sizes'][0]}, {entry['state']}, in {where}()"


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
    recorded = "was elsewhere"
    if last:
        dist.barrier()  # in the default group: the others come to it after they have given up
        said = said_by(add_ones, pg)  # nobody has ended this rank meanwhile
        expected = (CLOSED,)
    else:
        work = dist.all_reduce(torch.ones(2), group=pg, async_op=True)  # it begins: nobody waits yet
        said = said_by(work.wait)
        recorded = on_record()
        expected = (TIMED_OUT.format(1000 * cfg.timeout_s), CLOSED)
        dist.barrier()
    everyone = show(f"timeout {cfg.timeout_s:g} s, the last rank comes later", said, *expected)
    in_flight = ("gloo:all_reduce of [2], scheduled, in too_late()", "was elsewhere")
    show("the last call in the flight recorder", recorded, *in_flight)
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


@contextmanager
def no_stderr() -> Iterator[None]:
    """Drop what C++ writes: monitored_barrier logs its error beside raising it."""
    kept = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


def roll_call(present: tuple[int, ...], wait_all_ranks: bool, cfg: Config, group: Group) -> None:
    """Only ``present`` come to a monitored barrier. Rank 0, who is among them, says who does not."""
    pg = gloo_group(cfg.timeout_s)
    timeout = timedelta(seconds=cfg.timeout_s)
    absent = [rank for rank in range(group.world_size) if rank not in present]
    said = "was elsewhere"
    if group.rank in present:
        with no_stderr():
            # Without `timeout` it waits 30 minutes, whatever the group's own timeout is.
            said = said_by(dist.monitored_barrier, pg, timeout, wait_all_ranks)
    named = f"Rank{'s' * (len(absent) > 1)} {', '.join(map(str, absent))} failed to pass monitoredBarrier in"
    expected = f"[Rank 0]: {named} {1000 * cfg.timeout_s:.0f} ms"
    if group.rank in present[1:]:
        expected = f"Rank {group.rank} successfully reached monitoredBarrier, but received errors"
    if group.rank in absent:
        expected = "was elsewhere"
    show(f"monitored barrier without {absent}", said, expected)


def main(cfg: Config) -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        too_late(cfg, group)
        many_short_waits(cfg, group)
        n = group.world_size
        roll_call(tuple(range(n - 1)), False, cfg, group)
        if n > 2:
            roll_call((0,), True, cfg, group)


if __name__ == "__main__":
    run(main, Config())
