"""Try layouts, keep those that run and fit, and say of the others why not."""

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from .errors import PlanError, whole
from .failures import GPU_HOURS_PER_FAILURE, best_interval, goodput, mean_time_between
from .flops import BY_OP, NONE, SELECTIVE, WHOLE
from .hardware import GIB, GPUS, Gpu, Network
from .layout import GATHER, Layout, Problem, problems
from .memory import Memory, memory_of
from .stack import STACKS, UNFUSED, Stack
from .step import StepTime, some_stages, step_time, tokens_per_s
from .transformer import Model

DAY_S = 86400
# Mean errors of the rows of ``published`` that were not calibrated, rounded up: of seconds for dense models
# and those with experts, and of memory.
ERROR, ERROR_OF_EXPERTS, ERROR_OF_MEMORY = 0.08, 0.4, 0.06
# Memory of ``outside.csv``: mean, least and most error, rows; and the mean if the planner is not told what
# their code holds otherwise than the stack.
ERROR_OUTSIDE, UNTOLD = (0.12, -0.29, 0.37, 31), 0.35
# How many times as long as planned it takes, from and to. Nearly all rows of ``published`` are benchmarks
# that the makers of GPU or framework have tuned; steps of 13 dense models by others, whose rows were not
# kept, took up to 1.8 times as long. The ten whole trainings of ``wholes.csv`` took 0.9 to 3.5 times as long
# as what is proposed first for three stacks, nine of them up to 1.9. Of 33 rows with experts 30 lie within a
# factor of 2.
STEP, RUN, EXPERTS = (1 / (1 + ERROR), 1.8), (0.9, 3.5), (0.5, 2.0)


@dataclass(frozen=True)
class Training:
    """What is to be trained, and on what.

    Attributes:
        sequences: the global batch, of ``model.context`` tokens each.
        tokens: of the whole training.
        usable: the share of a GPU's memory that tensors get; the rest is the framework's, and gaps.
        dollars: for an hour of one GPU.
        save_s, restart_s: seconds that a checkpoint stops the training, and that a failure costs.
        gpu_hours: hours between failures of one GPU.
    """

    model: Model
    gpus: int
    sequences: int
    tokens: float
    gpu: Gpu = GPUS["h100"]
    network: Network = field(default_factory=Network)
    stack: Stack = STACKS["megatron"]
    usable: float = 0.92
    dollars: float = 2.0
    save_s: float = 5.0
    restart_s: float = 600.0
    gpu_hours: float = GPU_HOURS_PER_FAILURE

    def __post_init__(self) -> None:
        whole("gpus", self.gpus)
        whole("the global batch", self.sequences)
        for name in ("tokens", "usable", "dollars", "save_s", "restart_s", "gpu_hours"):
            if not 0 < getattr(self, name) < float("inf"):
                raise PlanError(f"{name} must be a number above 0, not {getattr(self, name)!r}")
        if self.usable > 1:
            raise PlanError(f"usable is a share of 1, not {self.usable!r}")

    @property
    def error(self) -> float:
        """How far the seconds of tuned benchmarks are off on average, as a share."""
        return ERROR if self.model.experts is None else ERROR_OF_EXPERTS

    @property
    def of_step(self) -> tuple[float, float]:
        """A step takes so many times as long as planned, from and to; ``of_run`` a whole training."""
        return STEP if self.model.experts is None else EXPERTS

    @property
    def of_run(self) -> tuple[float, float]:
        return RUN if self.model.experts is None else EXPERTS


@dataclass(frozen=True)
class Plan:
    """A layout that runs, and what it needs. ``days`` and ``dollars`` include what failures cost.

    It is ``tight`` if it would no longer fit with as much memory more as others' runs were off on average,
    ``refuted`` if a published run like it took several times as long as planned.
    """

    layout: Layout
    memory: Memory
    time: StepTime
    goodput: float
    interval_s: float
    days: float
    dollars: float
    tight: bool = False
    refuted: bool = False


@dataclass(frozen=True)
class Rejected:
    layout: Layout
    problems: tuple[Problem, ...]


def judge(training: Training, layout: Layout) -> Plan | Rejected:
    """The plan, or all that is wrong with the layout."""
    model, sequences = training.model, training.sequences
    reasons = problems(model, layout, training.gpus, sequences, training.network.node)
    if reasons:
        return Rejected(layout, tuple(reasons))
    memory = fullest(model, layout, sequences)
    room = training.gpu.memory * training.usable
    if memory.total > room:
        near = memory.total <= room * (1 + ERROR_OUTSIDE[0])
        text = f"{memory.total / GIB:.1f} GiB of {room / GIB:.1f}"
        text = f"may not fit, within the error: {text}" if near else f"does not fit: {text}"
        return Rejected(layout, (Problem("memory", text, memory.total / room),))
    time = step_time(model, layout, sequences, training.gpu, training.network)
    between = mean_time_between(training.gpus, training.gpu_hours)
    interval = best_interval(training.save_s, between)
    share = goodput(interval, training.save_s, training.restart_s, between)
    if share * time.total == 0:
        text = f"a failure every {between:.3g} s costs {training.restart_s:.3g} s: no work gets done"
        return Rejected(layout, (Problem("failures", text),))
    days = training.tokens / tokens_per_s(model, sequences, time.total) / DAY_S / share
    dollars = days * 24 * training.gpus * training.dollars
    tight = memory.total * (1 + ERROR_OUTSIDE[0]) > room
    # Mixtral 8x22B by FSDP alone on 128 H100: 4.3 % of the peak (arXiv 2504.14960), planned 35 %.
    gathers_experts = model.experts is not None and layout.zero == 3 and layout.ep == 1
    refuted = gathers_experts and layout.expert_shards > training.network.node
    return Plan(layout, memory, time, share, interval, days, dollars, tight, refuted)


def fullest(model: Model, layout: Layout, sequences: int) -> Memory:
    """Of the ranks along the pipeline that differ; the first along the others has the largest parts."""
    memories = []
    for index in some_stages(layout):
        memories.append(memory_of(model, layout, sequences, {**layout.position(0), "pp": index}))
    return max(memories, key=lambda memory: memory.total)


def divisors(number: int, most: int) -> list[int]:
    return [size for size in range(1, min(number, most) + 1) if number % size == 0]


def candidates(training: Training, fixed: dict[str, Any]) -> Iterator[Layout]:
    """Layouts whose sizes divide the GPUs, dp taking what is left; ``fixed`` gives some values."""
    model, gpus, experts = training.model, training.gpus, training.model.experts

    def choices(name: str, values: list) -> list:
        return [fixed[name]] if name in fixed else values

    tps = [tp for tp in divisors(gpus, training.network.node) if model.heads % tp == 0]
    cps = [cp for cp in (1, 2, 4, 8, 16, 32) if cp == 1 or model.context // cp >= 4096]
    pps = divisors(gpus, min(model.layers, 128))
    eps = divisors(experts.routed, 128) if experts else [1]
    dividing = [1, 3] if training.stack.regather else [0, 3]  # Megatron's optimizer, torch's DDP; and FSDP
    with_stages = [1 if training.stack.regather else 3]
    recomputes = [NONE, SELECTIVE if training.stack.attention == UNFUSED else BY_OP, WHOLE]
    for tp, cp, pp, ep in itertools.product(*map(choices, ("tp", "cp", "pp", "ep"), (tps, cps, pps, eps))):
        others = tp * cp * pp * fixed.get("replicate", 1)
        ranks = gpus // pp // fixed.get("replicate", 1)  # that experts can be divided among
        if ("dp" not in fixed and gpus % others) or ("ep" not in fixed and ranks % ep):
            continue
        dp = fixed.get("dp", gpus // others)
        even = [
            v
            for v in (1, 2, 3, 4, 5, 6, 8, 12)
            if not (model.layers % (pp * v) and (model.layers + 2) % (pp * v))
        ]
        rest = itertools.product(
            choices("zero", dividing if pp == 1 else with_stages),
            choices("chunks", sorted({1, *even}) if pp > 1 else [1]),
            choices("micro_batch", [1, 2, 4, 8, *([] if training.sequences % 3 else [3, 6])]),
            choices("recompute", recomputes),
        )
        for zero, chunks, micro_batch, recompute in rest:
            sizes = {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "ep": ep, "zero": zero, "chunks": chunks}
            choice = {
                "micro_batch": micro_batch,
                "recompute": recompute,
                "schedule": "interleaved" if chunks > 1 else "1F1B",
                "sequence_parallel": tp > 1,
                "context": GATHER,
                "resharding": pp == 1,
                "stack": training.stack,
            }
            layout = Layout(**{**choice, **fixed, **sizes})
            yield layout
            if layout.zero == 3 and "dp" not in fixed and "replicate" not in fixed:
                yield from in_replicas(layout, training.network.node)


def in_replicas(layout: Layout, node: int) -> Iterator[Layout]:
    """FSDP alone, within groups of one, four or sixteen nodes, and replicas of these groups (HSDP)."""
    if layout.tp * layout.cp * layout.pp * layout.ep > 1:
        return
    for shards in (node, 4 * node, 16 * node):
        if shards < layout.dp and layout.dp % shards == 0:
            yield replace(layout, dp=shards, replicate=layout.dp // shards)


def propose(training: Training, **fixed: Any) -> tuple[list[Plan], list[Rejected]]:
    """Plans, best first, and rejected layouts. ``fixed`` are fields of ``Layout``.

    Plans that are slower than the fastest by no more than the planner's own error count as equal to it; of
    these the simplest come first. Tight plans follow behind all others, refuted ones behind these. A global
    batch that almost divides is for the caller to change: see ``nearest_batch``.

    Raises:
        PlanError: with these fields there is no mesh of so many GPUs.
    """
    judged = [judge(training, layout) for layout in candidates(training, fixed)]
    plans = [verdict for verdict in judged if isinstance(verdict, Plan)]
    rejected = [verdict for verdict in judged if isinstance(verdict, Rejected)]
    if not judged:
        given = ", ".join(f"{name} {value}" for name, value in fixed.items())
        raise PlanError(f"{given} does not divide {training.gpus} GPUs")
    if plans:
        sound = [plan for plan in plans if not (plan.tight or plan.refuted)] or plans
        limit = min(plan.time.total for plan in sound) * (1 + training.error)
        plans.sort(
            key=lambda plan: (plan.refuted, plan.tight, max(plan.time.total, limit), *simplicity(plan))
        )
    return plans, rejected


def simplicity(plan: Plan) -> tuple:
    """Fewer dimensions first, then smaller ones, then no recomputation, then less time."""
    layout = plan.layout
    sizes = (layout.tp, layout.cp, layout.pp, layout.ep, layout.chunks, layout.replicate)
    used = sum(size > 1 for size in sizes) + (layout.recompute != NONE)
    return used, layout.tp * layout.cp * layout.pp, plan.time.total


def nearest_batch(training: Training, rejected: list[Rejected]) -> int | None:
    """The global batch with which most layouts would run that do not for their batch alone, if one within a
    tenth of what was asked for exists; else the nearest."""
    only = [
        rejection.problems[0]
        for rejection in rejected
        if [problem.kind for problem in rejection.problems] == ["batch"]
    ]
    near = Counter(problem.batch for problem in only if problem.off <= 0.1)
    if near:
        return max(near, key=lambda batch: (near[batch], -abs(batch - training.sequences)))
    return min(
        (problem.batch for problem in only), key=lambda batch: abs(batch - training.sequences), default=None
    )
