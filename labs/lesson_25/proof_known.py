"""The reader and the decision tree proved on traces whose answer is known: they are made of that answer.

Run it:      python labs/lesson_25/proof_known.py
"""

import random
from collections.abc import Callable, Sequence

from shared.runtime.errors import CourseError
from shared.runtime.run import run

from lesson_25.proof_diagnose import diagnose
from lesson_25.proof_reader import (
    COMMUNICATION,
    COMPUTE,
    DATA,
    EVALUATION,
    IDLE,
    OVERLAP,
    PARTS,
    STEP,
    TRANSFER,
    WAITING,
    clock_shifts,
    collectives,
    last_to_come,
    parts,
    read,
    waits,
)

NAMES = {  # {part: category and name, as torch 2.15 writes them}
    STEP: ("user_annotation", "ProfilerStep#1"),
    DATA: ("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
    EVALUATION: ("user_annotation", "evaluation"),
    COMPUTE: ("cpu_op", "aten::addmm"),
    COMMUNICATION: ("user_annotation", "gloo:all_reduce"),
    "broadcast": ("user_annotation", "gloo:broadcast"),
    "launch": ("cpu_op", "c10d::allreduce_"),
    "forward": ("user_annotation", "forward"),
}
ON_GPU = {
    COMPUTE: ("kernel", "ampere_sgemm_128x64_tn"),
    COMMUNICATION: ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
    EVALUATION: ("gpu_user_annotation", "evaluation"),
    "launch": ("cpu_op", "aten::addmm"),
    "nccl's launch": ("user_annotation", "nccl:all_reduce"),
}
LENGTH = 60  # of a random trace
Spans = Sequence[tuple[str, float, float]]  # part, start, end in milliseconds


def trace_of(
    rank: int,
    spans: Spans,
    on_gpu: bool = False,
    clock_ms: float = 0.0,
    groups: int = 1,
    numbers: Sequence[tuple[str, int]] = (),
) -> dict:
    """A rank's trace in torch's form.

    Args:
        clock_ms: how far its clock is ahead.
        numbers: for each collective in ``spans`` its group and sequence number, which a GPU's trace has.
    """
    names = NAMES | ON_GPU if on_gpu else NAMES
    keys = iter(numbers)
    events: list[dict] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]
    for part, start, end in spans:
        category, name = names.get(part, ("user_annotation", part))
        event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1}
        event |= {"ts": 1e3 * (start + clock_ms), "dur": 1e3 * (end - start)}
        if part == COMMUNICATION and numbers:
            group, number = next(keys)
            event["args"] = {"Process Group Name": group, "Seq": number}
        events.append(event)
    return {"distributedInfo": {"rank": rank, "pg_count": groups}, "traceEvents": events}


def expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise CourseError(f"{what}: {found}, known is {wanted}")


def rounded(seconds: dict[str, float]) -> dict[str, float]:
    """Milliseconds, without the last digits that floating point leaves."""
    return {part: round(1e3 * value, 6) for part, value in seconds.items()}


def check_one_step() -> None:
    """A step of 100 ms of which each part was added up by hand."""
    spans = [
        (STEP, 0, 100),
        (DATA, 0, 10),
        (COMPUTE, 2, 8),  # the loader stacks the samples
        ("forward", 10, 40),
        (COMPUTE, 10, 40),
        (COMPUTE, 15, 20),  # an operation within the other one
        ("launch", 40, 41),
        (COMMUNICATION, 40, 90),  # of which this rank waits until 75
        (COMPUTE, 45, 70),
        (EVALUATION, 90, 95),
        (COMPUTE, 91, 94),
        (COMPUTE, 110, 120),  # after the step
    ]
    wanted = {
        STEP: 100,
        DATA: 10,
        EVALUATION: 5,
        COMPUTE: 55,
        WAITING: 10,
        TRANSFER: 15,
        IDLE: 5,
        OVERLAP: 25,
    }
    (step,) = parts(read(trace_of(0, spans)), [(0.040, 0.075)])
    expect("a step of a CPU", rounded(step), wanted)
    spans = [
        (STEP, 0, 100),
        (DATA, 0, 30),
        ("launch", 30, 90),
        (COMPUTE, 10, 60),  # kernels of the step before hide 20 ms of the loader
        ("nccl's launch", 40, 90),
        (COMMUNICATION, 50, 80),
    ]
    wanted = {
        STEP: 100,
        DATA: 10,
        EVALUATION: 0,
        COMPUTE: 50,
        WAITING: 0,
        TRANSFER: 20,
        IDLE: 20,
        OVERLAP: 10,
    }
    (step,) = parts(read(trace_of(0, spans, on_gpu=True)), [])
    expect("a step of a GPU", rounded(step), wanted)
    print("one step, added up by hand: each part is right, for a CPU and for a GPU")


def check_random_steps(count: int) -> None:
    """Two steps of random spans, counted in another way: millisecond by millisecond."""
    draw = random.Random(25)
    for _ in range(count):
        middle = draw.randint(1, LENGTH - 1)
        spans: list[tuple[str, int, int]] = [(STEP, 0, middle), (STEP, middle, LENGTH)]
        for _ in range(draw.randint(0, 12)):
            start = draw.randrange(LENGTH)
            part = draw.choice([DATA, EVALUATION, COMPUTE, COMPUTE, COMMUNICATION, COMMUNICATION])
            spans.append((part, start, start + draw.randint(1, 15)))
        waiting = (draw.randrange(LENGTH), LENGTH)
        wanted = [dict.fromkeys(PARTS, 0) for _ in range(2)]
        for moment in range(LENGTH):
            step = wanted[moment >= middle]
            step[STEP] += 1
            now = {part for part, start, end in spans[2:] if start <= moment < end}
            does = next((part for part in (EVALUATION, DATA, COMPUTE) if part in now), None)
            if does:
                step[does] += 1
                step[OVERLAP] += COMMUNICATION in now
            elif COMMUNICATION in now:
                step[WAITING if moment >= waiting[0] else TRANSFER] += 1
            else:
                step[IDLE] += 1
        steps = parts(read(trace_of(0, spans)), [(waiting[0] / 1e3, waiting[1] / 1e3)])
        expect(f"random steps {spans}", [rounded(seconds) for seconds in steps], wanted)
    print(f"{count} random traces, counted millisecond by millisecond: each part is right")


def slow_run(own: list, transfer: float, clocks: list[float], steps: int = 4) -> list[dict]:
    """Traces of a run: each rank does its own parts, then all-reduces, which ends for all at one moment.

    Args:
        own: for each rank {part: milliseconds} in each step, or step -> that.
        transfer: milliseconds of the all-reduce itself.
        clocks: for each rank, by how many milliseconds its clock is ahead.
    """
    spans: list[list[tuple[str, float, float]]] = [[] for _ in own]
    begin = 1000.0
    for step in range(steps):
        now_own = [work(step) if callable(work) else work for work in own]
        end = begin + max(sum(parts_of_rank.values()) for parts_of_rank in now_own) + transfer
        for rank, parts_of_rank in enumerate(now_own):
            now = begin
            for part, milliseconds in parts_of_rank.items():
                if part != IDLE:
                    spans[rank].append((part, now, now + milliseconds))
                now += milliseconds
            spans[rank].append((COMMUNICATION, now, end))
            spans[rank].append((STEP, begin, end))
        begin = end
    return [trace_of(rank, spans[rank], clock_ms=clock) for rank, clock in enumerate(clocks)]


def check_ranks() -> None:
    """Clocks that differ by more than a step lasts, and a rank that comes 80 ms late."""
    own = [{DATA: 10.0, COMPUTE: 30.0}, {DATA: 10.0, COMPUTE: 110.0}, {DATA: 10.0, COMPUTE: 35.0}]
    traces = [read(trace) for trace in slow_run(own, 20.0, clocks=[0.0, 2500.0, -300.0])]
    shifts = clock_shifts(traces, collectives(traces))
    expect("shifts of the clocks", [round(1e3 * shift, 6) for shift in shifts], [0, -2500, 300])
    last = [(rank, round(1e3 * wait, 6)) for rank, wait in last_to_come(traces)]
    expect("who comes last", last, [(1, 80)] * 4)
    seconds = [
        rounded(parts(trace, waiting)[0]) for trace, waiting in zip(traces, waits(traces), strict=True)
    ]
    expect("waiting", [step[WAITING] for step in seconds], [80, 0, 75])
    expect("transfer", [step[TRANSFER] for step in seconds], [20, 20, 20])
    print("rank 1 comes 80 ms late: the others wait 80 and 75 ms, and the transfer takes 20 ms on all;")
    print("  clocks that are 2.5 s apart change nothing")


def check_groups() -> None:
    """Two groups whose collectives go on at once, so that the ranks see them in another order."""
    first = [(STEP, 0, 100), (COMPUTE, 0, 10), (COMMUNICATION, 10, 50), (COMMUNICATION, 12, 60)]
    second = [(STEP, 0, 100), (COMPUTE, 0, 10), (COMMUNICATION, 35, 60), (COMMUNICATION, 45, 50)]
    tensor, data = ("tensor", 7), ("data", 3)
    before = ("tensor", 6)  # of which only rank 0's trace has the end
    numbers = ([before, tensor, data], [data, tensor])
    traces = [
        read(trace_of(0, [(COMMUNICATION, -5, 1), *first], on_gpu=True, groups=2, numbers=numbers[0])),
        read(trace_of(1, second, on_gpu=True, groups=2, numbers=numbers[1], clock_ms=500)),
    ]
    pairs = [
        [round(1e3 * (event.end - event.start)) for event in call.values()] for call in collectives(traces)
    ]
    expect("pairs of two groups", pairs, [[40, 5], [48, 25]])
    seconds = [
        rounded(parts(trace, waiting)[0]) for trace, waiting in zip(traces, waits(traces), strict=True)
    ]
    expect("two groups: waiting", [step[WAITING] for step in seconds], [25, 0])

    try:
        read(trace_of(0, first, groups=2))
    except CourseError:
        print("two groups at once: paired by group and number; without these the reader refuses")
        return
    raise CourseError("two groups without their names were to be refused")


def check_broadcast() -> None:
    """The sender of a broadcast leaves early: it says nothing about clocks."""
    sender = [(STEP, 0, 100), ("broadcast", 0, 1), (COMMUNICATION, 10, 60)]
    other = [(STEP, 0, 100), ("broadcast", 0, 40), (COMMUNICATION, 50, 60)]
    traces = [read(trace_of(0, sender)), read(trace_of(1, other))]
    shifts = clock_shifts(traces, collectives(traces))
    expect("clocks with a broadcast", [round(1e3 * shift, 6) for shift in shifts], [0, 0])


def by_turns(rank: int, ranks: int, part: str, plain: dict[str, float]) -> Callable[[int], dict[str, float]]:
    """step -> what this rank does: in each step another one does 60 ms more of ``part``."""

    def work(step: int) -> dict[str, float]:
        if step % ranks != rank:
            return plain
        return plain | {part: plain.get(part, 0.0) + 60.0}

    return work


def check_reasons() -> None:
    """Each answer of the tree, from a run that was made for it."""
    plain = {DATA: 5.0, COMPUTE: 40.0, IDLE: 5.0}
    runs: list[tuple[str, tuple[int, ...], list, float]] = []
    for part in (DATA, EVALUATION, COMPUTE, IDLE):
        for rank in range(3):
            own = [dict(plain) for _ in range(3)]
            own[rank][part] = own[rank].get(part, 0.0) + 60.0
            runs.append((part, (rank,), own, 10.0))
        for ranks in (2, 4, 8):
            late = [by_turns(rank, ranks, part, plain) for rank in range(ranks)]
            runs.append((part, tuple(range(ranks)), late, 5.0))
        runs.append((part, (), [plain | {part: 90.0} for _ in range(3)], 10.0))
    runs.append((TRANSFER, (), [dict(plain) for _ in range(3)], 90.0))
    once = [
        lambda step: plain | {DATA: 65.0 * (step == 2)},
        lambda step: plain | {COMPUTE: 100.0 * (step != 2)},
    ]
    runs.append((COMPUTE, (1,), once, 5.0))  # in one step another rank was late
    for part, ranks, own, transfer in runs:
        clocks = [40.0 * rank * (-1) ** rank for rank in range(len(own))]
        traces = [read(trace) for trace in slow_run(own, transfer, clocks, steps=8)]
        name = f"more {part} on {f'ranks {ranks}' if ranks else 'all ranks'} of {len(own)}"
        expect(name, diagnose(traces), (part, ranks))
    print(f"{len(runs)} slow runs: the tree names the part and the ranks that were made slow, also by turns")


def main() -> None:
    check_one_step()
    check_random_steps(count=300)
    check_ranks()
    check_groups()
    check_broadcast()
    check_reasons()


if __name__ == "__main__":
    run(main)
