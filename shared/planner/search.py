"""Try layouts, keep those that run and fit, and say of the others why not."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .errors import PlanError, whole
from .failures import GPU_HOURS_PER_FAILURE, best_interval, goodput, mean_time_between
from .flops import NONE, SELECTIVE, WHOLE
from .hardware import GIB, GPUS, Gpu, Network
from .layout import GATHER, Layout, Problem, problems
from .memory import MIXED, Memory, Numbers, memory_of
from .models import Model
from .step import REACHED, StepTime, step_time, tokens_per_s

SIZES = (1, 2, 4, 8, 16, 32, 64)
MICRO_BATCHES = (1, 2, 4)
DAY_S = 86400


@dataclass(frozen=True)
class Training:
    """What is to be trained, and on what.

    Attributes:
        sequences: of ``model.context`` tokens, in a batch of all ranks together.
        tokens: of the whole training.
        reached: the share of the peak that matrix products get.
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
    numbers: Numbers = MIXED
    reached: float = REACHED
    usable: float = 0.92
    dollars: float = 2.0
    save_s: float = 5.0
    restart_s: float = 600.0
    gpu_hours: float = GPU_HOURS_PER_FAILURE

    def __post_init__(self) -> None:
        whole("gpus", self.gpus)
        whole("sequences", self.sequences)
        for name in ("tokens", "reached", "usable", "dollars", "save_s", "restart_s", "gpu_hours"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise PlanError(f"{name} must be a number above 0, not {value!r}")
        for name in ("reached", "usable"):
            if getattr(self, name) > 1:
                raise PlanError(f"{name} is a share of 1, not {getattr(self, name)!r}")


@dataclass(frozen=True)
class Plan:
    """A layout that runs, and what it needs. ``days`` and ``dollars`` include what failures cost."""

    layout: Layout
    memory: Memory
    time: StepTime
    goodput: float
    interval_s: float
    days: float
    dollars: float


@dataclass(frozen=True)
class Rejected:
    layout: Layout
    problems: tuple[Problem, ...]


def days_for(tokens: float, tokens_per_s: float) -> float:
    return tokens / tokens_per_s / DAY_S


def judge(training: Training, layout: Layout) -> Plan | Rejected:
    """The plan, or all that is wrong with the layout."""
    found = problems(training.model, layout, training.gpus, training.sequences, training.network.node)
    if found:
        return Rejected(layout, tuple(found))
    memory = fullest(training, layout)
    room = int(training.gpu.memory * training.usable)
    if memory.total > room:
        text = f"a rank needs {memory.total / GIB:.1f} GiB of {room / GIB:.1f}"
        return Rejected(layout, (Problem("memory", text, memory.total / room),))
    time = step_time(
        training.model,
        layout,
        training.sequences,
        training.gpu,
        training.network,
        training.reached,
        training.numbers,
    )
    between = mean_time_between(training.gpus, training.gpu_hours)
    interval = best_interval(training.save_s, between)
    share = goodput(interval, training.save_s, training.restart_s, between)
    rate = tokens_per_s(training.model, training.sequences, time.total)
    days = days_for(training.tokens, rate) / share
    dollars = days * 24 * training.gpus * training.dollars
    return Plan(layout, memory, time, share, interval, days, dollars)


def fullest(training: Training, layout: Layout) -> Memory:
    """Of the first rank and of the last one, which has the logits."""
    found = []
    for rank in {0, layout.ranks - 1}:
        position = layout.position(rank)
        position["dp"] = 0  # the first part is the largest
        found.append(memory_of(training.model, layout, training.sequences, training.numbers, position))
    return max(found, key=lambda memory: memory.total)


def candidates(training: Training, fixed: dict[str, Any]) -> Iterator[Layout]:
    """Layouts with powers of two, dp taking what is left; ``fixed`` gives some values as they are."""
    model = training.model

    def choices(name: str, values: tuple) -> tuple:
        return (fixed[name],) if name in fixed else values

    experts = SIZES if model.experts is not None else (1,)
    lengths = SIZES[:5] if model.context > 16384 else SIZES[:4]
    dimensions = itertools.product(
        choices("tp", (1, 2, 4, 8, 16)),
        choices("cp", lengths),
        choices("ep", experts),
        choices("pp", SIZES[:6]),
    )
    for tp, cp, ep, pp in dimensions:
        others = tp * cp * ep * pp
        if "dp" not in fixed and training.gpus % others:
            continue
        dp = fixed.get("dp", training.gpus // others)
        zeros = (1,) if pp > 1 else (1, 3)
        chunks = (1, 2, 4, 8) if pp > 1 else (1,)
        rest = itertools.product(
            choices("zero", zeros),
            choices("chunks", chunks),
            choices("micro_batch", MICRO_BATCHES),
            choices("recompute", (NONE, WHOLE) if model.gated else (NONE, SELECTIVE, WHOLE)),
        )
        for zero, stages, micro_batch, recompute in rest:
            yield Layout(
                tp=tp,
                cp=cp,
                ep=ep,
                pp=pp,
                dp=dp,
                zero=zero,
                chunks=stages,
                schedule="interleaved" if stages > 1 else "1F1B",
                micro_batch=micro_batch,
                recompute=recompute,
                sequence_parallel=tp > 1,
                context=GATHER,
            )


def propose(training: Training, **fixed: Any) -> tuple[list[Plan], list[Rejected]]:
    """Plans, the fastest first, and rejected layouts. ``fixed`` are fields of ``Layout``.

    Raises:
        PlanError: with these fields there is no mesh of so many GPUs.
    """
    plans = []
    rejected = []
    for layout in candidates(training, fixed):
        found = judge(training, layout)
        if isinstance(found, Plan):
            plans.append(found)
        else:
            rejected.append(found)
    if not plans and not rejected:
        given = ", ".join(f"{name} {value}" for name, value in fixed.items())
        raise PlanError(f"{given} does not divide {training.gpus} GPUs")
    plans.sort(key=lambda plan: (plan.time.total, plan.memory.total))
    return plans, rejected
