"""Check of exercise 16. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py"""

import operator
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType

import torch
import torch.distributed as dist
from torch import nn

from shared.runtime.errors import CourseError
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group
from shared.training.schedules import KINDS, Action, simulate
from shared.training.timeline import bubble

from lab_16_executor import one_f_one_b
from lesson_16.proof_halves import SplitPipeline

CASES = [(2, 4), (3, 6), (4, 8), (4, 5), (8, 16), (1, 3), (5, 7), (6, 9), (7, 7)]  # ranks, micro-batches
COSTS = {
    "F": 1.0,
    "B": 2.0,
    "I": 14 / 13,
    "W": 12 / 13,
}  # FLOPs of a GPT's stage: proof_halves counts them
TIMEOUT_S = 15.0  # seconds
TOLERANCE = 1e-12  # float64


def plan_of(schedule: Callable, ranks: int, micro_batches: int) -> list[list[Action]]:
    """The answer's actions of all ranks, with stages."""
    plan = []
    for rank in range(ranks):
        call = f"schedule({rank}, {ranks}, {micro_batches})"
        answer = schedule(rank, ranks, micro_batches)
        try:
            pairs = [(kind, operator.index(number)) for kind, number in answer]
        except (TypeError, ValueError):
            raise Wrong(f'{call} is {answer!r}, expected a list of pairs such as ("F", 0)') from None
        for kind, number in pairs:
            if kind not in KINDS:
                raise Wrong(f'{call} holds ({kind!r}, {number!r}), expected pairs such as ("F", 0)')
        plan.append([(kind, rank, number) for kind, number in pairs])
    return plan


def judge(schedule: Callable, ranks: int, micro_batches: int) -> tuple[float, float]:
    """The bubble and the most micro-batches that a rank holds, or what is wrong with them."""
    case = f"{ranks} ranks, {micro_batches} micro-batches"
    plan = plan_of(schedule, ranks, micro_batches)
    try:
        simulation = simulate(plan, micro_batches)
    except CourseError as error:
        raise Wrong(f"{case}: {error}") from None
    held = max(simulation.peak_live)
    if held > ranks:
        rank = simulation.peak_live.index(held)
        raise Wrong(f"{case}: rank {rank} holds {held:.0f} micro-batches at once, {ranks} are allowed")
    length = max(span.end for span in simulation.spans)
    allowed = 3 * micro_batches + ranks - 1
    share = bubble(simulation.spans, ranks)
    if length > allowed:
        raise Wrong(
            f"{case}: a step takes {length:.0f}, allowed is {allowed}; the bubble is {share:.3f}, "
            f"allowed is {1 - 3 * micro_batches / allowed:.3f}"
        )
    return share, held


def length_by_flops(plan: list[list[Action]], micro_batches: int) -> float:
    """How long a step takes, if each action takes as long as its FLOPs say."""
    return max(span.end for span in simulate(plan, micro_batches, COSTS).spans)


def layers(ranks: int) -> nn.ModuleList:
    """A stage for each rank, the same on all of them."""
    torch.manual_seed(16)
    built = [nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh()) for _ in range(ranks)]
    return nn.ModuleList(built).double()


def run_it(schedule: Callable, group: Group) -> None:
    """Train one step by the answer's schedule, on all ranks, beside one process."""
    ranks, micro_batches = group.world_size, 2 * group.world_size
    x = torch.randn(2 * micro_batches, 8, dtype=torch.float64).to(group.device)
    dist.broadcast(x, src=0)
    pieces = list(x.chunk(micro_batches))
    whole = layers(ranks).to(group.device)
    y = x
    for stage in whole:
        y = stage(y)
    y.square().mean().backward()
    mine = layers(ranks)[group.rank].to(group.device)
    pipeline = SplitPipeline(
        {group.rank: mine}, range(ranks), group.device, x.dtype, timedelta(seconds=TIMEOUT_S)
    )
    actions = plan_of(schedule, ranks, micro_batches)[group.rank]
    shapes = [piece.shape for piece in pieces]
    pipeline.step(actions, pieces, shapes, lambda _, output: output.square().sum() / x.numel())
    for (name, ours), theirs in zip(mine.named_parameters(), whole[group.rank].parameters(), strict=True):
        if ours.grad is None or not torch.allclose(ours.grad, theirs.grad, rtol=0, atol=TOLERANCE):
            raise Wrong(f"run by {ranks} ranks, the gradient of {name} is not that of one process")


def verify(answer: ModuleType, group: Group) -> str:
    here = (group.world_size, 2 * group.world_size)  # as ``run_it`` runs it
    results = {case: judge(answer.schedule, *case) for case in [*CASES, here]}
    run_it(answer.schedule, group)
    share, held = results[4, 8]
    ours = length_by_flops(plan_of(answer.schedule, 4, 8), 8)
    theirs = length_by_flops([one_f_one_b(rank, 4, 8) for rank in range(4)], 8)
    if ours >= theirs:
        raise Wrong(f"if a GPT's FLOPs were time, a step would take {ours:.1f}, with 1F1B {theirs:.1f}")
    return (
        f"4 ranks, 8 micro-batches: bubble {share:.3f} instead of 0.273, at most {held:.0f} held at once; "
        f"if a GPT's FLOPs were time, a step would take {ours:.1f} forward passes, with 1F1B {theirs:.1f}; "
        f"run by {group.world_size} ranks it equals one process. Well done."
    )


if __name__ == "__main__":
    check_exercise("16_schedule", verify, ranks=2, timeout_s=TIMEOUT_S)
