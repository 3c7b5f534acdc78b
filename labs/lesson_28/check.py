"""Check of exercise 28. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py"""

from dataclasses import replace
from types import ModuleType
from typing import Any

from rank_tools.planner import (
    CAUSAL,
    GPUS,
    Layout,
    Model,
    Network,
    Plan,
    Training,
    judge,
    model_named,
    per_token,
    propose,
)
from rank_tools.planner.hardware import seconds
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

ENOUGH = 1.01  # a plan may take so much longer than the fastest that can be paid for
PIPELINE = Layout(tp=8, pp=8, chunks=4, schedule="interleaved")
# {what: layout, sequences}; from one thing to all of them
STEPS = {
    "compute alone": (Layout(), 4),
    "tensor parallelism": (Layout(tp=8), 4),
    "a pipeline": (Layout(pp=4), 8),
    "interleaved stages": (PIPELINE, 16),
    "data parallelism that hides": (replace(PIPELINE, dp=2), 32),
    "data parallelism with few micro-batches": (Layout(tp=8, dp=64), 128),
    "two ranks of a DP group in a node": (Layout(tp=4, dp=64), 128),
    "data parallelism alone, on two nodes": (Layout(dp=16), 16),
    "data parallelism within a node": (Layout(tp=2, dp=4), 4),
    "all of it": (replace(PIPELINE, dp=16), 128),
}
FEW = Training(model_named("8b"), 8, 8, 1e12, network=Network(card=12.5e9))
# {what: training, dollars, the most GPUs}
BUDGETS = {
    # No layout fits 8 or 16 GPUs, 256 are too dear, and on 128 the plan that comes first is not the fastest.
    "Llama 3 70B": (Training(model_named("70b"), 8, 128, 1e12), 495_000, 256),
    # The fastest plan is tight, and the one that comes first costs too much.
    "Llama 3 70B, at most 32 GPUs": (Training(model_named("70b"), 8, 128, 1e12), 495_000, 32),
    # All 256 GPUs can be paid for, and take longer than half of them.
    "Llama 3 8B, 8 sequences in a step": (FEW, 600_000, 256),
    # With twice as many GPUs as there are it would end sooner.
    "Llama 3 8B, at most 64 GPUs": (FEW, 600_000, 64),
}


def expected_seconds(model: Model, layout: Layout, sequences: int) -> float:
    gpu, network = GPUS["h100"], Network()
    micro_batches = sequences / (layout.dp * layout.micro_batch)
    tokens = layout.micro_batch * model.context
    operations = per_token(model, CAUSAL) * tokens / (layout.tp * layout.pp)
    parts = 10 * tokens * model.width * 2 * (layout.tp - 1) / layout.tp
    micro_batch = operations / (gpu.peak * gpu.gemm) + parts * model.layers / layout.pp / gpu.link
    numbers = model.parameters() / layout.tp / layout.pp
    inside = max(1, min(layout.dp, network.node // layout.tp))
    starts: dict[str, Any] = dict.fromkeys(
        ("start_inside", "start_between", "hop_inside", "hop_between"), 0.0
    )
    at_once = replace(network, reached=1.0, **starts)
    reducing = seconds("reduce_scatter", layout.dp, inside, 1, 6 * numbers, gpu, at_once)
    rest = max(0.0, reducing - micro_batch)
    return micro_batch * (micro_batches + (layout.pp - 1) / layout.chunks) + rest


def check_seconds(answer: ModuleType) -> None:
    model = model_named("70b")
    for what, (layout, sequences) in STEPS.items():
        found = answer.step_seconds(model, layout, sequences, GPUS["h100"], Network())
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise Wrong(f"step_seconds returns {found!r}, which is no number")
        expected = expected_seconds(model, layout, sequences)
        if abs(found / expected - 1) > 1e-6:
            raise Wrong(f"{what}, {layout}: a step takes {expected:.4g} s, not {found:.4g}")


def check_budget(what: str, answer: ModuleType) -> None:
    training, dollars, most = BUDGETS[what]
    result = answer.spend(training, most, dollars)
    if result is None:
        raise Wrong(f"{what}: spend finds no plan, and {dollars:,} dollars pay for one")
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], Plan):
        raise Wrong(f"{what}: expected a number of GPUs and a Plan, not {type(result).__name__}")
    gpus, plan = result
    if gpus not in (8, 16, 32, 64, 128, 256) or gpus > most:
        raise Wrong(f"{what}: {gpus!r} GPUs are not 8 times a power of two, at most {most}")
    judged = judge(replace(training, gpus=gpus), plan.layout)
    if not isinstance(judged, Plan):
        raise Wrong(f"{what}: on {gpus} GPUs this layout cannot run: {judged.problems[0].text}")
    if judged.dollars > dollars:
        raise Wrong(f"{what}: {gpus} GPUs cost {judged.dollars:,.0f} dollars, there are {dollars:,}")
    if judged.tight:
        raise Wrong(f"{what}: {judged.layout} on {gpus} GPUs is tight: it may not fit")
    affordable = []
    size = 8
    while size <= most:
        plans, _ = propose(replace(training, gpus=size))
        roomy = [candidate for candidate in plans if not candidate.tight]
        affordable += [candidate.days for candidate in roomy if candidate.dollars <= dollars]
        size *= 2
    if judged.days > ENOUGH * min(affordable):
        raise Wrong(
            f"{what}: it takes {judged.days:.1f} days, and {dollars:,} dollars pay for {min(affordable):.1f}"
        )


def verify(answer: ModuleType, group: Group) -> str:
    if group.rank == 0:
        check_seconds(answer)
    for what in list(BUDGETS)[group.rank % len(BUDGETS) :: group.world_size]:
        check_budget(what, answer)
    return f"{len(STEPS)} steps to the second, {len(BUDGETS)} budgets spent well. Well done."


if __name__ == "__main__":
    check_exercise("28_plan", verify, ranks=2, timeout_s=60)  # to search takes seconds
