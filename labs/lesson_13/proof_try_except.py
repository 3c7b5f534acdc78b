"""One rank catches its error and skips a step: the others add up numbers of different steps, then wait.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_13/proof_try_except.py
"""

import re
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from shared.runtime.errors import CourseError, neighbour_is_gone
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


def reference(cfg: Config, world_size: int) -> dict[int, int]:
    """What every rank should have: the sum over ranks of the same step, by step."""
    ones = sum(10**rank for rank in range(world_size))
    return {step: step * ones for step in range(1, cfg.steps + 1)}


def without_addresses(error: str) -> str:
    """The first words of gloo's message, without the file it comes from and the addresses of ranks."""
    says = re.sub(r"^\[.*?\] ", "", error)
    return says.partition(" for ")[0].partition(" [")[0]  # "for recv", or "for send"


def all_reduce_again(training: dist.ProcessGroup) -> str:
    """What becomes of one more all-reduce, which all ranks call in step."""
    try:
        dist.all_reduce(torch.zeros(1), group=training)
    except RuntimeError:
        return "fails, too"
    return "works"


def check(is_last: bool, wrong: list[int], says: str, again: str, cfg: Config, world_size: int) -> None:
    """Whose time is up first closes its connections; where others are, they may hear of that first."""
    expected = [3, 4]
    as_told = says == f"Timed out waiting {1000 * cfg.timeout_s:.0f}ms"
    if world_size > 2:
        as_told = as_told or neighbour_is_gone(says)
    if is_last:
        expected = [4, 5]
        as_told = says == "out of memory"
    if wrong != expected or not as_told or again == "works":
        raise CourseError(f"expected wrong sums at {expected}, found {wrong}: {says}")


def main(cfg: Config) -> None:
    with process_group(smallest=2) as group:
        # A group of its own, which may break; messages about it travel in the other one.
        training = dist.new_group(timeout=timedelta(seconds=cfg.timeout_s), backend="gloo")
        sums, errors = train(cfg, group, training)
        right = reference(cfg, group.world_size)
        wrong = [step for step, total in sums if total != right[step]]
        failed_at, error = errors[0]
        says = without_addresses(error)
        print_in_rank_order(", ".join(f"step {step}: {total}" for step, total in sums))
        print_in_rank_order(f"step {failed_at}: {says}")
        again = all_reduce_again(training)
        print_in_rank_order(f"wrong sums at steps {wrong}; the next all_reduce of this group {again}")
        check(group.rank == group.world_size - 1, wrong, says, again, cfg, group.world_size)


if __name__ == "__main__":
    run(main, Config())
