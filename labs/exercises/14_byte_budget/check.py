"""Check of exercise 14. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py

Rank r's loss is |weight - truth - pull of r|^2 / 2. Over the ranks the pulls cancel out. They are the largest
numbers of each gradient: whoever sends only what is large now sends nothing else, ever.
"""

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from shared.comm.record import CommRecord, record
from shared.comm.same_calls import DifferentCalls, SameCalls
from shared.runtime.errors import ParityError
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group
from shared.training.parity import assert_same_on_every_rank

NUMEL = 600
BUDGET = 480  # bytes; the whole gradient has 4,800
PULLED = 40  # numbers that the ranks pull apart
PULL = 10.0
STEPS = 300
LR = 0.02
WATCHED = 5  # steps in which the sums are looked at, and all ranks have to call the same
TOLERANCE = 1e-13  # of the largest number in a sum; float64
REMAINS = 0.25  # distance to the truth that is allowed in the end, as a fraction of that at the start


def tensor_of(what: str, value: Any, like: torch.Tensor) -> torch.Tensor:
    """``value``, if it is a finite tensor like ``like``."""
    if not isinstance(value, torch.Tensor):
        raise Wrong(f"{what} is {type(value).__name__}, not a tensor")
    if value.shape != like.shape or value.dtype != like.dtype:
        raise Wrong(
            f"{what} is {tuple(value.shape)} {value.dtype}, expected {tuple(like.shape)} {like.dtype}"
        )
    if not torch.isfinite(value).all():
        raise Wrong(f"{what} holds a value that is not finite")
    return value


def total(tensor: torch.Tensor) -> torch.Tensor:
    """The sum over the ranks."""
    tensor = tensor.clone()
    dist.all_reduce(tensor)
    return tensor


class Watched:
    """An answer, step by step: what goes in, what comes back, what it keeps, and what it sends."""

    def __init__(self, answer: ModuleType, like: torch.Tensor) -> None:
        self.compressor = answer.Compressor(like, BUDGET)
        self.like = like
        self.largest = 0  # bytes in a step

    def residual(self) -> torch.Tensor:
        return tensor_of("residual", getattr(self.compressor, "residual", None), self.like).clone()

    def average(self, gradient: torch.Tensor, step: int, log: CommRecord) -> torch.Tensor:
        given = gradient.clone()
        before = self.residual()
        bytes_before = log.bytes()
        try:
            with log:
                mean = self.compressor.average(given)
        except DifferentCalls as error:
            raise Wrong(str(error)) from None
        mean = tensor_of("the mean", mean, self.like)
        if not torch.equal(given, gradient):
            raise Wrong("average changes the gradient that it is given")
        sent = log.bytes() - bytes_before
        self.largest = max(self.largest, sent)
        if sent > BUDGET:
            raise Wrong(f"this rank hands in {sent:,} bytes in a step, the budget is {BUDGET}")
        if step < WATCHED or step == STEPS - 1:
            self.check_same(mean)
            self.check_sums(gradient, before, mean)
        return mean.clone()

    def check_same(self, mean: torch.Tensor) -> None:
        try:
            assert_same_on_every_rank("the mean", [("that comes back", mean)])
        except ParityError as error:
            raise Wrong(str(error)) from None

    def check_sums(self, gradient: torch.Tensor, before: torch.Tensor, mean: torch.Tensor) -> None:
        """Over all ranks: what waited and what was given = what came back and what waits now."""
        n = dist.get_world_size()
        after = self.residual()
        arrived = n * mean
        sent = total(before + gradient - after)
        scale = total(before.abs() + gradient.abs()).max().item()

        def same(one: torch.Tensor, other: torch.Tensor) -> bool:
            return (one - other).abs().max().item() <= TOLERANCE * scale

        if same(arrived, sent):
            return
        if torch.equal(after, before):
            raise Wrong("the residual stays as it was: what is not sent is lost")
        if same(arrived, n * sent):
            raise Wrong("average returns the sum over the ranks, not the mean")
        if same(n * arrived, sent):
            raise Wrong("the mean is divided by the number of ranks twice")
        if before.any() and torch.equal(torch.where(after == 0, gradient, after), gradient):
            raise Wrong("the residual forgets what waited in it before this step")
        off = (arrived - sent).abs().max().item()
        raise Wrong(f"what came back and the residual do not add up to what was given: off by {off:.1e}")


def verify(answer: ModuleType, group: Group) -> str:
    random = torch.Generator().manual_seed(14)
    truth = torch.randn(NUMEL, generator=random, dtype=torch.float64).to(group.device)
    pull = torch.zeros_like(truth)
    pull[:PULLED] = PULL * (2 * group.rank - group.world_size + 1) / max(1, group.world_size - 1)
    weight = torch.zeros_like(truth)
    watched = Watched(answer, torch.zeros_like(truth))
    careful = SameCalls()
    quick = record()
    for step in range(STEPS):
        mean = watched.average(weight - truth - pull, step, careful if step < WATCHED else quick)
        weight -= LR * mean
    remains = ((weight - truth).norm() / truth.norm()).item()
    if remains > REMAINS:
        raise Wrong(
            f"after {STEPS} steps the error is {remains:.0%} of that at the start, allowed are "
            f"{REMAINS:.0%}: does each number get its turn?"
        )
    return (
        f"{watched.largest} of {NUMEL * 8:,} bytes in a step; what came back and what waits add up to what "
        f"was given; error {remains:.1%} of that at the start. Well done."
    )


if __name__ == "__main__":
    check_exercise("14_byte_budget", verify)
