"""A reader of torch's traces: where the time of each step goes, and who comes last to a collective.

Run it:      python labs/lab_25_reader.py FOLDER
Written by:  notebooks/25_see_it.ipynb

FOLDER holds the traces of one run, a ``*.json`` file for each rank. The standard library is enough.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from shared.runtime.errors import CourseError, InputError
from shared.runtime.run import run

DATA, EVALUATION, COMPUTE, COMMUNICATION = "data", "evaluation", "compute", "communication"
LAUNCH = "launch"  # Python's thread hands a collective to one of gloo's
OVERLAP, IDLE, STEP = "overlap", "idle", "step"
PARTS = (STEP, DATA, EVALUATION, COMPUTE, COMMUNICATION, OVERLAP, IDLE)

Spans = list[tuple[float, float]]  # (start, end) in seconds


@dataclass(frozen=True)
class Event:
    """One span of a trace, in seconds of that rank's clock."""

    kind: str
    name: str
    start: float
    end: float


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


def read(trace: dict) -> Trace:
    """A rank's trace from what ``json.load`` makes of the file."""
    spans = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    on_gpu = any(event.get("cat") == "kernel" for event in spans)
    steps, events = [], []
    for event in sorted(spans, key=lambda one: one["ts"]):
        start, end = event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6
        if event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep#"):
            steps.append((start, end))
        kind = kind_of(event, on_gpu)
        if kind is not None:
            events.append(Event(kind, event["name"], start, end))
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
    found: Spans = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def common(ones: Spans, others: Spans) -> Spans:
    """What lies in both. Each list is merged."""
    found = []
    for start, end in ones:
        for other_start, other_end in others:
            if max(start, other_start) < min(end, other_end):
                found.append((max(start, other_start), min(end, other_end)))
    return found


def without(ones: Spans, others: Spans) -> Spans:
    """What of ``ones`` does not lie in ``others``. Each list is merged."""
    found = []
    for start, end in ones:
        for other_start, other_end in common([(start, end)], others):
            if start < other_start:
                found.append((start, other_start))
            start = other_end
        if start < end:
            found.append((start, end))
    return found


def length(spans: Spans) -> float:
    return sum(end - start for start, end in spans)


def parts(trace: Trace) -> list[dict[str, float]]:
    """For each step {part: seconds}.

    The operations of the data loader and of the evaluation do not count as compute. ``overlap`` is the part
    of the communication during which the rank does something else. ``idle`` is what no event covers.
    """
    found = []
    for step in trace.steps:
        window = [step]
        communication = common(window, merged(trace.spans(COMMUNICATION)))
        compute = common(window, merged(trace.spans(COMPUTE)))
        evaluation = common(window, merged(trace.spans(EVALUATION)))
        data = without(common(window, merged(trace.spans(DATA))), evaluation)
        compute = without(compute, evaluation)
        if trace.on_gpu:  # it computes while the CPU loads data, which costs nothing then
            data = without(data, compute)
        else:
            compute = without(compute, data)
        busy = merged(data + evaluation + compute)
        found.append(
            {
                STEP: length(window),
                DATA: length(data),
                EVALUATION: length(evaluation),
                COMPUTE: length(compute),
                COMMUNICATION: length(communication),
                OVERLAP: length(common(communication, busy)),
                IDLE: length(without(window, merged(busy + communication))),
            }
        )
    return found


def collectives(traces: list[Trace]) -> list[list[Event]]:
    """For each rank its collectives, in order: the first of one rank belongs to the first of another.

    Raises:
        CourseError: ranks have recorded different numbers of them.
    """
    found = [[event for event in trace.events if event.kind == COMMUNICATION] for trace in traces]
    counts = [len(events) for events in found]
    if len(set(counts)) > 1:
        raise CourseError(f"ranks recorded {counts} collectives: they have not traced the same steps")
    return found


def clock_shifts(traces: list[Trace]) -> list[float]:
    """Seconds to add to each rank's times, so that they are times of rank 0.

    An all-reduce ends on all ranks at almost the same moment, whatever their clocks say.
    """
    first, *_ = every = collectives(traces)
    return [median(one.end - other.end for one, other in zip(first, own, strict=True)) for own in every]


def calls_by_step(traces: list[Trace]) -> list[list[tuple[Event, ...]]]:
    """For each step its collectives, each as the events of all ranks. Rank 0's clock says which step."""
    calls = list(zip(*collectives(traces), strict=True))
    return [[one for one in calls if start <= one[0].start < end] for start, end in traces[0].steps]


def last_to_come(traces: list[Trace]) -> list[tuple[int, float]]:
    """For each step (rank, seconds): who entered a collective last, and how long the first one waited for it.

    If there are several collectives in a step, the longest wait counts.
    """
    shifts = clock_shifts(traces)
    found = []
    for calls in calls_by_step(traces):
        worst = (0, 0.0)
        for events in calls:
            entered = [event.start + shift for event, shift in zip(events, shifts, strict=True)]
            wait = max(entered) - min(entered)
            if wait > worst[1]:
                worst = (entered.index(max(entered)), wait)
        found.append(worst)
    return found


def table(traces: list[Trace]) -> str:
    """Milliseconds of a step by part, the mean of all steps, a line for each rank."""
    lines = ["rank " + "".join(f"{part:>14}" for part in PARTS) + "   last in"]
    last = [rank for rank, _ in last_to_come(traces)]
    for trace in traces:
        steps = parts(trace)
        cells = "".join(f"{1e3 * mean(step[part] for step in steps):14.1f}" for part in PARTS)
        lines.append(f"{trace.rank:4} {cells}   {last.count(trace.rank)} of {len(steps)}")
    return "\n".join(lines)


def main() -> None:
    if len(sys.argv) != 2:
        raise InputError("name the folder that holds the traces of one run")
    print(table(read_folder(Path(sys.argv[1]))))


if __name__ == "__main__":
    run(main)
