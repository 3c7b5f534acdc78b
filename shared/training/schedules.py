"""Pipeline schedules as lists of actions: what is wrong with one, and what it takes. Taught in lesson 16."""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shared.runtime.errors import CourseError
from shared.training.timeline import COMPUTE, Span

FORWARD = "F"
BACKWARD = "B"  # the whole backward pass of a stage
INPUT = "I"  # the half of it that computes the gradient of the stage's input
WEIGHT = "W"  # the other half: the gradients of its parameters
KINDS = (FORWARD, BACKWARD, INPUT, WEIGHT)

Action = tuple[str, int, int]  # kind, stage, micro-batch
Schedule = Sequence[Sequence[Action]]  # the actions of each rank, in the order in which it does them

# Seconds of each kind of action for 1 / ranks of the model. A backward pass computes two products of matrices
# for each one of forward.
SECONDS = {FORWARD: 1.0, BACKWARD: 2.0, INPUT: 1.0, WEIGHT: 1.0}


@dataclass(frozen=True)
class Simulation:
    """What a schedule comes to, if messages take no time.

    Attributes:
        spans: what each rank computed and when. A span's ``what`` is the action, such as ``F 0 3``.
        peak_live: for each rank the most micro-batches whose activations it held at once. One that only one
            of a rank's v stages holds counts 1 / v.
    """

    spans: list[Span]
    peak_live: list[float]


def stages_of(schedule: Schedule) -> int:
    """How many stages the model has: each of them forwards something."""
    return len({stage for actions in schedule for kind, stage, _ in actions if kind == FORWARD})


def name_of(action: Action) -> str:
    """``F 0 3``: forward of stage 0 for micro-batch 3."""
    kind, stage, number = action
    return f"{kind} {stage} {number}"


def in_words(action: Action) -> str:
    """As an error says it."""
    kind, stage, number = action
    return f"{kind} of micro-batch {number} in stage {stage}"


def inputs_of(action: Action, stages: int) -> list[Action]:
    """What has to be done before ``action``; a backward pass of stage s counts as its ``I``."""
    kind, stage, number = action
    if kind == FORWARD:
        return [(FORWARD, stage - 1, number)] if stage > 0 else []
    if kind == WEIGHT:
        return [(INPUT, stage, number)]
    before = [(FORWARD, stage, number)]
    if stage < stages - 1:
        before.append((INPUT, stage + 1, number))
    return before


def assert_complete(schedule: Schedule, micro_batches: int) -> None:
    """Each stage lies on one rank, and does one forward and one backward pass for each micro-batch.

    Raises:
        CourseError: otherwise, in one sentence.
    """
    stages = stages_of(schedule)
    rank_of: dict[int, int] = {}
    seen: set[Action] = set()
    for rank, actions in enumerate(schedule):
        for action in actions:
            kind, stage, number = action
            if kind not in KINDS or not 0 <= stage < stages or not 0 <= number < micro_batches:
                raise CourseError(f"rank {rank}: there is no {in_words(action)}")
            if action in seen:
                raise CourseError(f"rank {rank} does {in_words(action)} twice")
            if rank_of.setdefault(stage, rank) != rank:
                raise CourseError(
                    f"stage {stage} lies on rank {rank_of[stage]}, so rank {rank} has none of it"
                )
            seen.add(action)
    for stage in range(stages):
        for number in range(micro_batches):
            missing = _missing_of(stage, number, seen)
            if missing:
                raise CourseError(f"rank {rank_of[stage]} never does {missing}")


def _missing_of(stage: int, number: int, seen: set[Action]) -> str:
    """The first action that a stage owes to a micro-batch, or has once too often; "" if there is none."""
    has = {kind for kind in KINDS if (kind, stage, number) in seen}
    if FORWARD not in has:
        return in_words((FORWARD, stage, number))
    if BACKWARD in has:
        if INPUT in has or WEIGHT in has:
            raise CourseError(f"stage {stage}, micro-batch {number}: a B does the work of I and W already")
        return ""
    if INPUT not in has and WEIGHT not in has:
        return in_words((BACKWARD, stage, number))
    for kind in (INPUT, WEIGHT):
        if kind not in has:
            return in_words((kind, stage, number))
    return ""


def simulate(
    schedule: Schedule,
    micro_batches: int,
    seconds: dict[str, float] | None = None,
    slower: dict[int, float] | None = None,
) -> Simulation:
    """Do each rank's actions in order, each as soon as what it needs is there.

    Args:
        seconds: of each kind of action for 1 / ranks of the model; ``SECONDS`` by default.
        slower: {stage: how many times as long its actions take}; 1 for stages that it does not name.

    Raises:
        CourseError: something is missing or done twice, a rank does things in an order that cannot be, or
            ranks wait for each other for ever.
    """
    seconds = seconds or SECONDS
    slower = slower or {}
    assert_complete(schedule, micro_batches)
    stages = stages_of(schedule)
    ranks = len(schedule)
    share = ranks / stages  # of what a rank holds: one of its stages
    done: dict[Action, float] = {}
    free = [0.0] * ranks
    position = [0] * ranks
    live = [0.0] * ranks
    peak_live = [0.0] * ranks
    spans: list[Span] = []
    total = sum(len(actions) for actions in schedule)
    while len(spans) < total:
        before = len(spans)
        for rank, actions in enumerate(schedule):
            while position[rank] < len(actions):
                kind, stage, number = action = actions[position[rank]]
                needed = inputs_of(action, stages)
                if any(earlier not in done for earlier in needed):
                    break
                start = max([free[rank], *(done[earlier] for earlier in needed)])
                end = start + seconds[kind] * share * slower.get(stage, 1.0)
                spans.append(Span(rank, COMPUTE, name_of(action), start, end))
                done[(INPUT if kind == BACKWARD else kind, stage, number)] = end
                free[rank] = end
                position[rank] += 1
                if kind == FORWARD:
                    live[rank] += share
                    peak_live[rank] = max(peak_live[rank], live[rank])
                elif kind != INPUT:
                    live[rank] -= share
        if len(spans) == before:
            raise CourseError(_deadlock(schedule, position, done, stages))
    return Simulation(sorted(spans, key=lambda span: (span.start, span.device)), peak_live)


def _deadlock(schedule: Schedule, position: list[int], done: dict[Action, float], stages: int) -> str:
    """Who waits for what, when nobody can go on."""
    waits = []
    for rank, actions in enumerate(schedule):
        if position[rank] == len(actions):
            continue
        action = actions[position[rank]]
        missing = next(needed for needed in inputs_of(action, stages) if needed not in done)
        kind, stage, number = missing
        if any(later[1] == stage for later in actions):
            return f"rank {rank} is to do {in_words(action)} before {in_words(missing)}"
        what = "the activations" if kind == FORWARD else "the gradient"
        waits.append(f"rank {rank} waits with {in_words(action)} for {what} from stage {stage}")
    return f"deadlock: {'; '.join(waits)}"


def idle_while_at_work(spans: Sequence[Span], device: int) -> float:
    """Seconds in which a device had begun, had not ended, and computed nothing."""
    own = [span for span in spans if span.device == device and span.queue == COMPUTE]
    length = max(span.end for span in own) - min(span.start for span in own)
    return length - sum(span.end - span.start for span in own)


def order_table(name: str, ranks: int, micro_batches: int) -> list[list[Action]]:
    """The actions of torch's schedule ``name``, such as ``Interleaved1F1B``, as torch itself lists them.

    Several stages per rank mean two of them.
    """
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

    with contextlib.redirect_stdout(io.StringIO()):  # some of torch's schedules print what they do
        table = get_schedule_ops(name, ranks, micro_batches)
    return [[action for entry in entries for action in _actions_of(entry)] for entries in table]


def _actions_of(entry: Any) -> list[Action]:
    """What one entry of torch's table computes; it may be empty, or a pair to be overlapped."""
    if entry is None:
        return []
    if entry.sub_actions:
        return [action for part in entry.sub_actions for action in _actions_of(part)]
    kind = {
        "FORWARD": FORWARD,
        "FULL_BACKWARD": BACKWARD,
        "BACKWARD_INPUT": INPUT,
        "BACKWARD_WEIGHT": WEIGHT,
    }.get(entry.computation_type.name)
    if kind is None:
        return []
    return [(kind, entry.stage_index, entry.microbatch_index)]
