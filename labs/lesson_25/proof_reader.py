"""A reader of torch's traces: where the time of each step goes, and who comes last to a collective.

Run it:      python labs/lesson_25/proof_reader.py FOLDER

FOLDER holds the traces of one run, a ``*.json`` file for each rank. The standard library is enough. Its time
grows with the number of events, not with that of steps times events.
"""

import json
import sys
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from shared.runtime.errors import CourseError, InputError
from shared.runtime.run import run

DATA, EVALUATION, COMPUTE, COMMUNICATION = "data", "evaluation", "compute", "communication"
LAUNCH = "launch"  # Python's thread hands a collective to one of gloo's
WAITING, TRANSFER = "waiting", "transfer"  # communication that nothing hides: for a late rank, and the rest
OVERLAP, IDLE, STEP = "overlap", "idle", "step"
PARTS = (STEP, DATA, EVALUATION, COMPUTE, WAITING, TRANSFER, IDLE, OVERLAP)
ONLY = "the only one"  # a group without a name in the trace
# Collectives that end on all ranks at almost the same moment. The sender of a broadcast may leave early.
END_TOGETHER = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")

Spans = list[tuple[float, float]]  # (start, end) in seconds
Key = tuple[str, int, int]  # of a collective: group, sequence number, and which of those with this number


@dataclass(frozen=True)
class Event:
    """One span of a trace, in seconds of that rank's clock. ``key`` is for collectives alone."""

    kind: str
    name: str
    start: float
    end: float
    key: Key | None = None


@dataclass(frozen=True)
class Trace:
    """What one rank recorded: (start, end) of its steps, and its events, both in the order of their start."""

    rank: int
    on_gpu: bool
    steps: Spans
    events: list[Event]

    def spans(self, kind: str) -> Spans:
        return [(event.start, event.end) for event in self.events if event.kind == kind]


def kind_of(event: dict, on_gpu: bool) -> str | None:
    """What a span of torch's trace is; None for what we do not count.

    With a GPU its kernels count: what the CPU does is to launch them. torch gives each ``record_function``
    a second span there, over the kernels that were launched in it.
    """
    name, category = event["name"], event.get("cat")
    if category == "user_annotation" and name.startswith("enumerate(DataLoader)#"):
        return DATA
    if on_gpu:
        if category == "gpu_user_annotation" and name == EVALUATION:
            return EVALUATION
        if category == "kernel":
            return COMMUNICATION if name.startswith("nccl") else COMPUTE
        return None
    if category == "user_annotation" and name == EVALUATION:
        return EVALUATION
    if category == "user_annotation" and name.startswith("gloo:"):
        return COMMUNICATION
    if category == "cpu_op":
        return LAUNCH if name.startswith("c10d::") else COMPUTE
    return None


class Numbers:
    """Gives the collectives of one rank their keys.

    nccl's kernels carry the group's name and a sequence number. gloo's spans carry neither: we count, and
    there must be a single group.
    """

    def __init__(self, groups: int) -> None:
        self.groups = groups
        self.called: Counter[str] = Counter()
        self.same: Counter[tuple[str, int]] = Counter()

    def key(self, event: dict) -> Key:
        details = event.get("args", {})
        group = details.get("Process Group Name", ONLY)
        if group == ONLY and self.groups > 1:
            raise CourseError(
                f"{event['name']}: the trace does not say to which of {self.groups} groups it belongs"
            )
        number = details.get("Seq", self.called[group])
        self.called[group] += 1
        again = self.same[group, number]
        self.same[group, number] += 1
        return group, number, again


def read(trace: dict) -> Trace:
    """A rank's trace from what ``json.load`` makes of the file."""
    spans = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    on_gpu = any(event.get("cat") == "kernel" for event in spans)
    numbers = Numbers(trace["distributedInfo"].get("pg_count", 1))
    steps, events = [], []
    for event in sorted(spans, key=lambda event: event["ts"]):
        start, end = event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6
        if event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep#"):
            steps.append((start, end))
        kind = kind_of(event, on_gpu)
        if kind is not None:
            key = numbers.key(event) if kind == COMMUNICATION else None
            events.append(Event(kind, event["name"], start, end, key))
    return Trace(trace["distributedInfo"]["rank"], on_gpu, steps, events)


def read_folder(folder: Path) -> list[Trace]:
    """The traces of all ranks, in their order.

    Raises:
        InputError: a rank is missing, or there is no trace at all.
    """
    traces = [read(json.loads(path.read_text(encoding="utf-8"))) for path in folder.glob("*.json")]
    traces.sort(key=lambda trace: trace.rank)
    if not traces or [trace.rank for trace in traces] != list(range(len(traces))):
        raise InputError(f"there must be a trace of each rank, not of {[trace.rank for trace in traces]}")
    return traces


def merged(spans: Spans) -> Spans:
    """The same moments as spans that do not overlap: operations lie within each other."""
    joined: Spans = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def common(ones: Spans, others: Spans) -> Spans:
    """What lies in both. Each list is merged, and read once."""
    overlaps = []
    i = j = 0
    while i < len(ones) and j < len(others):
        start = max(ones[i][0], others[j][0])
        end = min(ones[i][1], others[j][1])
        if start < end:
            overlaps.append((start, end))
        if ones[i][1] < others[j][1]:
            i += 1
        else:
            j += 1
    return overlaps


def without(ones: Spans, others: Spans) -> Spans:
    """What of ``ones`` does not lie in ``others``. Each list is merged."""
    ends = [float("-inf"), *(end for _, end in others)]
    starts = [*(start for start, _ in others), float("inf")]
    return common(ones, list(zip(ends, starts, strict=True)))


def seconds_by_step(steps: Spans, spans: Spans) -> list[float]:
    """How long ``spans``, which are merged, last within each step."""
    starts = [start for start, _ in steps]
    seconds = [0.0] * len(steps)
    for start, end in common(merged(steps), spans):
        step = bisect_left(starts, end) - 1
        while step >= 0 and steps[step][1] > start:  # steps without a gap between them are one span here
            seconds[step] += min(end, steps[step][1]) - max(start, steps[step][0])
            step -= 1
    return seconds


def parts(trace: Trace, waiting: Spans) -> list[dict[str, float]]:
    """For each step {part: seconds}.

    The operations of the data loader and of the evaluation do not count as compute. ``overlap`` is the part
    of the communication during which the rank does something else. The rest of it is ``waiting`` for ranks
    that have not come, and ``transfer``. ``idle`` is what no event covers.

    Args:
        waiting: of this rank, from ``waits``.
    """
    communication = merged(trace.spans(COMMUNICATION))
    evaluation = merged(trace.spans(EVALUATION))
    compute = without(merged(trace.spans(COMPUTE)), evaluation)
    data = without(merged(trace.spans(DATA)), evaluation)
    if trace.on_gpu:  # it computes while the CPU loads data, which costs nothing then
        data = without(data, compute)
    else:
        compute = without(compute, data)
    busy = merged(data + evaluation + compute)
    exposed = without(communication, busy)
    spans = {
        STEP: merged(trace.steps),
        DATA: data,
        EVALUATION: evaluation,
        COMPUTE: compute,
        WAITING: common(exposed, waiting),
        TRANSFER: without(exposed, waiting),
        OVERLAP: common(communication, busy),
        IDLE: without(merged(trace.steps), merged(busy + communication)),
    }
    seconds = {part: seconds_by_step(trace.steps, ones) for part, ones in spans.items()}
    return [{part: seconds[part][step] for part in PARTS} for step in range(len(trace.steps))]


Collective = dict[int, Event]  # {rank: its event}


def collectives(traces: list[Trace]) -> list[Collective]:
    """Those that end together, each with the events of all its ranks, paired by group and sequence number.

    A trace may begin or end between two collectives of a group. What is not in the traces of all ranks of
    its group is left out, if the trace has sequence numbers.

    Raises:
        CourseError: ranks have recorded different numbers of collectives that can only be counted.
    """
    by_key: dict[Key, Collective] = {}
    members: dict[str, set[int]] = {}
    for trace in traces:
        for event in trace.events:
            if event.key is not None:
                by_key.setdefault(event.key, {})[trace.rank] = event
                members.setdefault(event.key[0], set()).add(trace.rank)
    calls = []
    for (group, number, _), events in by_key.items():
        name = next(iter(events.values())).name
        if len(events) < len(members[group]) and not name.startswith("nccl"):
            raise CourseError(
                f"{name} {number}: only ranks {sorted(events)} recorded it, of {members[group]}"
            )
        flat = name.lower().replace("_", "")
        together = any(op in flat for op in END_TOGETHER)
        if together and events.keys() == members[group] and len(events) > 1:
            calls.append(events)
    return calls


def clock_shifts(traces: list[Trace], calls: list[Collective]) -> list[float]:
    """Seconds to add to each rank's times, so that they are times of rank 0.

    A collective ends on all ranks at almost the same moment, whatever their clocks say. A rank that shares
    no group with rank 0 is aligned by way of one that does.
    """
    differences: dict[tuple[int, int], list[float]] = {}
    for events in calls:
        first = min(events)
        for rank, event in events.items():
            differences.setdefault((first, rank), []).append(events[first].end - event.end)
            differences.setdefault((rank, first), []).append(event.end - events[first].end)
    shifts = {0: 0.0}
    aligned = [0]
    while aligned:
        known = aligned.pop()
        for (first, rank), seconds in differences.items():
            if first == known and rank not in shifts:
                shifts[rank] = shifts[known] + median(seconds)
                aligned.append(rank)
    return [shifts.get(trace.rank, 0.0) for trace in traces]


def waits(traces: list[Trace]) -> list[Spans]:
    """For each rank, by its own clock, when it waits in a collective into which not all have come.

    While another collective transfers something, it does not count.
    """
    calls = collectives(traces)
    shifts = clock_shifts(traces, calls)
    waiting: list[Spans] = [[] for _ in traces]
    moving: list[Spans] = [[] for _ in traces]
    for events in calls:
        last = max(event.start + shifts[rank] for rank, event in events.items())
        for rank, event in events.items():
            entered = min(max(last - shifts[rank], event.start), event.end)
            waiting[rank].append((event.start, entered))
            moving[rank].append((entered, event.end))
    pairs = zip(waiting, moving, strict=True)
    return [without(merged(ones), merged(others)) for ones, others in pairs]


def last_to_come(traces: list[Trace]) -> list[tuple[int, float]]:
    """For each step (rank, seconds): who entered a collective last, and how long the first one waited for it.

    If there are several collectives in a step, the longest wait counts. Rank 0's clock says which step.
    """
    calls = collectives(traces)
    shifts = clock_shifts(traces, calls)
    starts = [start for start, _ in traces[0].steps]
    longest = [(0, 0.0)] * len(starts)
    for events in calls:
        entered = {rank: event.start + shifts[rank] for rank, event in events.items()}
        last = max(entered, key=entered.__getitem__)
        wait = entered[last] - min(entered.values())
        step = bisect_left(starts, min(event.end + shifts[rank] for rank, event in events.items())) - 1
        if step >= 0 and entered[last] < traces[0].steps[step][1] and wait > longest[step][1]:
            longest[step] = (last, wait)
    return longest


def table(traces: list[Trace]) -> str:
    """Milliseconds of a step by part, the mean of all steps, a line for each rank."""
    lines = ["rank " + "".join(f"{part:>11}" for part in PARTS) + "   last in"]
    last = [rank for rank, _ in last_to_come(traces)]
    for trace, waiting in zip(traces, waits(traces), strict=True):
        steps = parts(trace, waiting)
        cells = "".join(f"{1e3 * mean(step[part] for step in steps):11.1f}" for part in PARTS)
        lines.append(f"{trace.rank:4} {cells}   {last.count(trace.rank)} of {len(steps)}")
    return "\n".join(lines)


def main() -> None:
    if len(sys.argv) != 2:
        raise InputError("name the folder that holds the traces of one run")
    print(table(read_folder(Path(sys.argv[1]))))


if __name__ == "__main__":
    run(main)
