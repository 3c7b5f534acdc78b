"""One rank catches its error and skips a step: the others add up numbers of different steps, then wait.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_13_try_except.py
Written by:  notebooks/13_elastic.ipynb
"""

import re
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order
from shared.runtime.run import run


@dataclass(frozen=True)
class Config:
    steps: int = 5
    fails_at: int = 3
    timeout_s: float = 4.0


def gradient(step: int, rank: int, cfg: Config, world_size: int) -> torch.Tensor:
    """A number that tells who made it in which step. The last rank runs out of memory once."""
    if (step, rank) == (cfg.fails_at, world_size - 1):
        raise RuntimeError("out of memory")
    return torch.tensor(10**rank * step)


def train(cfg: Config, group: Group, training: dist.ProcessGroup) -> tuple[list, list]:
    """(step, sum over ranks) of each step that this rank did, and the errors it met."""
    sums = []
    errors = []
    for step in range(1, cfg.steps + 1):
        try:
            total = gradient(step, group.rank, cfg, group.world_size)
            dist.all_reduce(total, group=training)
        except RuntimeError as error:
            errors.append((step, str(error)))
            continue  # skip this batch, train on
        sums.append((step, int(total)))
    return sums, errors


def reference(cfg: Config, world_size: int) -> list[tuple[int, int]]:
    """What every rank should have: the sum over ranks of the same step."""
    return [(step, sum(10**rank * step for rank in range(world_size))) for step in range(1, cfg.steps + 1)]


def main(cfg: Config) -> None:
    with process_group(smallest=2) as group:
        # A group of its own, which may break; messages about it travel in the other one.
        training = dist.new_group(timeout=timedelta(seconds=cfg.timeout_s), backend="gloo")
        sums, errors = train(cfg, group, training)
        wrong = [step for step, total in sums if (step, total) not in reference(cfg, group.world_size)]
        last = group.rank == group.world_size - 1
        print_in_rank_order(", ".join(f"step {step}: {total}" for step, total in sums))
        says = re.sub(r"^\[.*?\] ", "", errors[0][1]).partition(" for ")[0]  # for recv, or for send
        says = says.partition(" [")[0]  # the address of a rank that has left
        print_in_rank_order(f"step {errors[0][0]}: {says}")
        try:
            dist.all_reduce(torch.zeros(1), group=training)  # all ranks call it, in step again
            again = "works"
        except RuntimeError:
            again = "fails, too"
        print_in_rank_order(f"wrong sums at steps {wrong}; the next all_reduce of this group {again}")
        # Whose time is up first closes its connections; others may hear of that before theirs is.
        closed = ("Connection closed by", "Connection reset by") if group.world_size > 2 else ()
        late = (f"Timed out waiting {1000 * cfg.timeout_s:.0f}ms", *closed)
        expected = ([4, 5], ("out of memory",)) if last else ([3, 4], late)
        if wrong != expected[0] or not says.startswith(expected[1]) or again == "works":
            raise CourseError(
                f"expected wrong sums at {expected[0]} and {expected[1]!r}, found {wrong}: {says}"
            )


if __name__ == "__main__":
    run(main, Config())
