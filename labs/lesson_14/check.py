"""Check of exercise 14. Run it: torchrun --standalone --nproc-per-node=3 CHECK.py

Rank r's loss is |weight - truth - pull of r|^2 / 2. Over the ranks the pulls cancel out. They are so large
that int8 rounds all other numbers to zero: whoever forgets what is rounded off never learns those.
"""

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from shared.comm.record import CommRecord, least_bytes, record
from shared.comm.same_calls import DifferentCalls, SameCalls
from shared.runtime.errors import ParityError
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group
from shared.training.parity import assert_same_on_every_rank

NUMEL = 840  # 2 to 8 ranks divide it
PULLED = 40  # numbers that the ranks pull apart
PULL = 10.0
TRUTH = 0.03  # size of the numbers to be learned; 10 / 127 / 2 is more
STEPS = 300
LR = 0.02
WATCHED = 5  # steps in which the sums are looked at, and all ranks have to call the same
TOLERANCE = 1e-13  # of the largest number in a sum; float64
CLOSE = 1.01 / 127  # of the largest number, in one step: half a code is lost at each of two roundings
REMAINS = 0.25  # distance to the truth that is allowed in the end, as a fraction of that at the start


def budget(ranks: int) -> float:
    """Bytes that a rank may send: an all-reduce of one byte a number, and some scales."""
    return least_bytes("all_reduce", NUMEL, ranks) + 64 * (ranks - 1)


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
        self.compressor = answer.Int8Mean(like)
        self.like = like
        self.largest = 0.0  # bytes in a step

    def residual(self) -> torch.Tensor:
        return tensor_of("residual", getattr(self.compressor, "residual", None), self.like).clone()

    def average(self, gradient: torch.Tensor, step: int, log: CommRecord) -> torch.Tensor:
        given = gradient.clone()
        before = self.residual()
        bytes_before = log.by_rule()
        try:
            with log:
                mean = self.compressor.average(given)
        except DifferentCalls as error:
            raise Wrong(str(error)) from None
        mean = tensor_of("the mean", mean, self.like)
        if not torch.equal(given, gradient):
            raise Wrong("average changes the gradient that it is given")
        sent = log.by_rule() - bytes_before
        ranks = dist.get_world_size()
        self.largest = max(self.largest, sent)
        if sent > budget(ranks):
            raise Wrong(
                f"this rank has to send {sent:,.0f} bytes in a step of {ranks} ranks, allowed are "
                f"{budget(ranks):,.0f}: one byte a number, sent twice at most"
            )
        if ranks > 1 and sent == 0:
            raise Wrong("no collective sends anything")
        if step == 0:
            self.check_close(mean, given)
        if step < WATCHED or step == STEPS:
            self.check_same(mean)
            self.check_sums(gradient, before, mean)
        return mean.clone()

    def check_close(self, mean: torch.Tensor, given: torch.Tensor) -> None:
        """Of numbers of all sizes, before anything waits."""
        exact = total(given) / dist.get_world_size()
        largest = given.abs().max()
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        off = ((mean - exact).abs().max() / largest).item()
        if ((mean / dist.get_world_size() - exact).abs().max() / largest).item() < CLOSE < off:
            raise Wrong("average returns the sum over the ranks, not the mean")
        if off > CLOSE:
            raise Wrong(f"the first mean is off by {off:.1%} of the largest number; int8 allows {CLOSE:.1%}")

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
            raise Wrong("the residual stays as it was: what is rounded off is lost")
        off = (arrived - sent).abs().max().item()
        raise Wrong(f"what came back and the residual do not add up to what was given: off by {off:.1e}")


def verify(answer: ModuleType, group: Group) -> str:
    random = torch.Generator().manual_seed(14)
    truth = TRUTH * torch.randn(NUMEL, generator=random, dtype=torch.float64).to(group.device)
    pull = torch.zeros_like(truth)
    pull[:PULLED] = PULL * (2 * group.rank - group.world_size + 1) / max(1, group.world_size - 1)
    weight = torch.zeros_like(truth)
    own = torch.Generator().manual_seed(group.rank)
    gradient = torch.randn(NUMEL, generator=own, dtype=torch.float64).to(group.device)
    careful = SameCalls()
    quick = record()
    Watched(answer, torch.zeros_like(truth)).average(gradient, 0, careful)
    watched = Watched(answer, torch.zeros_like(truth))
    for step in range(1, STEPS + 1):
        mean = watched.average(weight - truth - pull, step, careful if step < WATCHED else quick)
        weight -= LR * mean
    remains = ((weight - truth).norm() / truth.norm()).item()
    if remains > REMAINS:
        raise Wrong(
            f"after {STEPS} steps the error is {remains:.0%} of that at the start, allowed are "
            f"{REMAINS:.0%}: does what is rounded off come back?"
        )
    without = least_bytes("all_reduce", truth.nbytes, group.world_size)
    return (
        f"{watched.largest:,.0f} bytes in a step, {without:,.0f} without; what came back and what waits add "
        f"up to what was given; error {remains:.1%} of that at the start. Well done."
    )


if __name__ == "__main__":
    check_exercise("14_int8_mean", verify, ranks=3)
