"""Check of exercise 09. Run it: torchrun --standalone --nproc-per-node=3 CHECK.py"""

import contextlib
from copy import deepcopy
from types import ModuleType

import torch
import torch.distributed as dist
from torch import nn

from shared.comm.late import late_all_reduces
from shared.comm.record import CommRecord, record
from shared.runtime.errors import CourseError
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

from lab_08_loops import SHAPES, TwoNets
from lesson_08.proof_shapes import OUTCOMES, outcome
from lesson_09.overlap import assert_overlap
from lesson_09.promises import two_halves

TOLERANCE = 1e-12  # float64
CAP = 0.0005  # MiB: half a KiB, a bucket for each layer
PATIENCE_S = 10  # a rank that stands still so long counts as blocked; nobody waits so long in a right answer
TIMEOUT_S = 30
LEARNING_RATE = 0.1


class Net(nn.Module):
    """Tied, frozen, conditional and never used layers, used in another order than registered.

    Input (batch, 8), output (batch, 8), float64. ``left`` and ``right`` have the same size; ``swap`` uses
    them in the other order, ``sometimes`` adds a layer. Without ``spare`` no layer is never used.
    """

    def __init__(self, rank: int, spare: bool = True) -> None:
        super().__init__()
        torch.manual_seed(rank)
        self.last = nn.Linear(8, 8)
        self.left = nn.Linear(8, 8)
        self.never = nn.Linear(8, 8)
        self.sometimes = nn.Linear(8, 8)
        self.tied = nn.Linear(8, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.right = nn.Linear(8, 8)
        self.first = nn.Linear(8, 8)
        self.tied.weight = self.first.weight
        if not spare:
            del self.never
        self.double()

    def forward(self, x: torch.Tensor, sometimes: bool, swap: bool) -> torch.Tensor:
        x = torch.tanh(self.tied(torch.tanh(self.first(x))))
        one, other = (self.right, self.left) if swap else (self.left, self.right)
        x = torch.tanh(other(torch.tanh(one(self.frozen(x)))))
        if sometimes:
            x = x + self.sometimes(x)
        return self.last(x)


class Part:
    """One forward and backward within a step: on which ranks layers are used, and how."""

    def __init__(
        self,
        sometimes: str = "nobody",
        swap: bool = False,
        sync: bool = True,
        evaluate: bool = False,
        backward_outside: bool = False,
    ):
        self.sometimes = sometimes
        self.swap = swap  # odd ranks use two layers in the other order
        self.sync = sync  # False: under no_sync()
        self.evaluate = evaluate  # a forward without gradients between forward and backward
        self.backward_outside = backward_outside  # under no_sync() there is only the forward

    def loss(self, model: nn.Module, x: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
        on = {"nobody": False, "rank 0": rank == 0, "the last rank": rank == ranks - 1, "all": True}
        return model(x[rank], on[self.sometimes], self.swap and rank % 2 == 1).square().mean()


# What each step of training is told to be, and its parts.
STEPS = {
    "the first step": [Part()],
    "layers used in different orders on different ranks": [Part(swap=True)],
    "a layer that nobody uses": [Part()],
    "a layer that rank 0 alone uses": [Part("rank 0")],
    "a layer that all use again": [Part("all")],
    "a forward under no_grad between forward and backward": [Part(evaluate=True)],
    "three parts, two of them under no_sync()": [Part("all", sync=False), Part(sync=False), Part()],
    "a layer used only under no_sync()": [Part("the last rank", sync=False), Part()],
    "the step after no_sync()": [Part("rank 0")],
    "a forward under no_sync() whose backward comes after it": [
        Part(sync=False, backward_outside=True),
        Part(),
    ],
    "two averaged backwards in one step": [Part("all"), Part()],
}
FROM_NO_SYNC = {
    "training that begins under no_sync()": [Part("all", sync=False), Part("all")],
    "the step after that": [Part("all")],
}
ALL_USED_BY_RANK_0 = {"a step in which rank 0 alone uses all parameters": [Part("rank 0")]}
IN_TWO_GROUPS = {
    "two steps": [Part()],
    "the second": [Part()],
    "a layer that the last rank alone uses": [Part("the last rank")],
}
UNUSED_SHARE_A_BUCKET = {
    "a first step in which the last rank alone uses a layer": [Part("the last rank")],
    "a second one in which rank 0 alone uses it": [Part("rank 0")],
}


def verify_parity(
    answer: ModuleType,
    group: Group,
    steps: dict[str, list[Part]],
    cap: float = CAP,
    members: dist.ProcessGroup | None = None,
    spare: bool = True,
) -> None:
    """Train the answer beside one process that has the data of all members. The results arrive late."""
    ranks = dist.get_process_group_ranks(members or dist.group.WORLD)
    ours = Net(group.rank, spare).to(group.device)
    alone = Net(ranks[0], spare).to(group.device)
    ddp = answer.OverlappedDDP(ours, cap, members)
    generator = torch.Generator().manual_seed(0)
    for told, parts in steps.items():
        if members is not None:
            told = f"{told}, with two groups of ranks"
        for model in (ours, alone):
            model.zero_grad()
        for number, part in enumerate(parts, start=1):
            x = torch.randn(group.world_size, 4, 8, dtype=torch.float64, generator=generator).to(group.device)
            buckets = len(ddp.buckets)
            log = forward_and_backward(told, ddp, part, x, group)
            if not part.sync and log.count():
                raise Wrong(f"{told}: backward number {number} sent something, {dict(log.counts())}")
            calls = log.count("all_reduce")
            if calls > buckets + 1:  # one more tells who has used what
                raise Wrong(f"{told}: {calls} all-reduces in one backward, for {buckets} buckets")
            losses = [part.loss(alone, x, rank, group.world_size) for rank in ranks]
            torch.stack(losses).mean().backward()
        compare(told, ours, alone, group)
        with torch.no_grad():
            for model in (ours, alone):
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter -= LEARNING_RATE * parameter.grad


def forward_and_backward(told: str, ddp: nn.Module, part: Part, x: torch.Tensor, group: Group) -> CommRecord:
    """One part of a step; returns what backward sent. Raises ``Wrong`` if it did not wait for all of it."""
    with contextlib.ExitStack() as no_sync:
        if not part.sync:
            no_sync.enter_context(ddp.no_sync())
        loss = part.loss(ddp, x, group.rank, group.world_size)
        if part.evaluate:
            with torch.no_grad():
                ddp(x[0], False, False)
        if part.backward_outside:
            no_sync.close()
        with record() as log, late_all_reduces() as works:
            loss.backward()
    left = sum(not work.delivered for work in works)
    if left:
        raise Wrong(f"{told}: backward ended without waiting for {left} of its all-reduces")
    return log


def compare(told: str, ours: nn.Module, alone: nn.Module, group: Group) -> None:
    """Raise ``Wrong``, on all ranks, unless all gradients of all ranks are those of one process."""
    message = ""
    for (name, p), truth in zip(ours.named_parameters(), alone.parameters(), strict=True):
        problem = problem_of(p.grad, truth.grad)
        if problem:
            message = f"{told}: on rank {group.rank} the gradient of {name} {problem}"
            break
    everyones = [""] * group.world_size
    dist.all_gather_object(everyones, message)
    for problem in everyones:
        if problem:
            raise Wrong(problem)


def verify_shapes(answer: ModuleType, group: Group) -> None:
    """Each shape of lab_08_loops does what it does with torch's DDP.

    A reentrant checkpoint is left out: DDP stops with an error there, and an answer may do anything.
    """
    for name, shape in SHAPES.items():
        _, expected = OUTCOMES[name]
        if expected == "error":
            continue
        torch.manual_seed(0)
        model = TwoNets().to(group.device)
        alone = deepcopy(model)
        ddp = answer.OverlappedDDP(model)
        with record() as log:
            found = outcome(shape, ddp, alone, lambda log=log, alone=alone: reductions(log, alone))
        if found != expected:
            raise Wrong(f"{name}: {found}; with torch's DDP it is {expected} (all-reduces of gradients)")


def reductions(log: CommRecord, model: nn.Module) -> int:
    """How many all-reduces carried all gradients; those that say who has used what are smaller."""
    whole = sum(parameter.nbytes for parameter in model.parameters())
    return sum(call.bytes >= whole for call in log.of("all_reduce"))


def problem_of(gradient: torch.Tensor | None, mean: torch.Tensor | None) -> str:
    """What is wrong with a gradient; nothing if it is the mean, or None where nobody has one."""
    if gradient is None:
        return "" if mean is None else "is None, but some rank has used it"
    if mean is None:
        return "is there, but nobody has used it: it must stay None"
    off = (gradient - mean).abs().max().item()
    if off <= TOLERANCE:
        return ""
    return f"is off the mean over the ranks by {off:.1e} ({gradient.dtype})"


def verify(answer: ModuleType, group: Group) -> str:
    verify_parity(answer, group, STEPS)
    verify_parity(answer, group, UNUSED_SHARE_A_BUCKET, cap=2 * CAP)
    verify_parity(answer, group, FROM_NO_SYNC)
    verify_parity(answer, group, IN_TWO_GROUPS, members=two_halves(group))
    verify_shapes(answer, group)
    verify_parity(answer, group, ALL_USED_BY_RANK_0, spare=False)  # last: ranks may wait here for each other
    try:
        events = assert_overlap(answer.OverlappedDDP, group, PATIENCE_S)
    except CourseError as error:
        raise Wrong(str(error)) from None
    gradients = events.count("gradient ready")
    return (
        f"{len(STEPS)} steps equal one process to {TOLERANCE:.0e}, and {gradients - 1} of {gradients} "
        "buckets leave before the last gradient is ready. Well done."
    )


if __name__ == "__main__":
    check_exercise("09_overlapped_ddp", verify, ranks=3, timeout_s=TIMEOUT_S)
