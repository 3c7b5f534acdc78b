"""The reader and the decision tree proved on traces whose answer is known: they are made of that answer.

Run it:      python labs/lab_25_known.py
Written by:  notebooks/25_see_it.ipynb
"""

import random
from collections.abc import Sequence

from lab_25_diagnose import diagnose
from lab_25_reader import (
    COMMUNICATION,
    COMPUTE,
    DATA,
    EVALUATION,
    IDLE,
    OVERLAP,
    STEP,
    clock_shifts,
    last_to_come,
    parts,
    read,
)

from shared.runtime.errors import CourseError
from shared.runtime.run import run

NAMES = {  # {part: category and name, as torch 2.15 writes them}
    STEP: ("user_annotation", "ProfilerStep#1"),
    DATA: ("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
    EVALUATION: ("user_annotation", "evaluation"),
    COMPUTE: ("cpu_op", "aten::addmm"),
    COMMUNICATION: ("user_annotation", "gloo:all_reduce"),
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


def trace_of(rank: int, spans: Spans, on_gpu: bool = False, clock_ms: float = 0.0) -> dict:
    """A rank's trace in torch's form. ``clock_ms`` is how far its clock is ahead."""
    names = NAMES | ON_GPU if on_gpu else NAMES
    events: list[dict] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]
    for part, start, end in spans:
        category, name = names[part]
        when = {"ts": 1e3 * (start + clock_ms), "dur": 1e3 * (end - start)}
        events.append({"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, **when})
    return {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}


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
        (COMMUNICATION, 40, 90),
        (COMPUTE, 45, 70),
        (EVALUATION, 90, 95),
        (COMPUTE, 91, 94),
        (COMPUTE, 110, 120),  # after the step
    ]
    wanted = {STEP: 100, DATA: 10, EVALUATION: 5, COMPUTE: 55, COMMUNICATION: 50, OVERLAP: 25, IDLE: 5}
    (found,) = parts(read(trace_of(0, spans)))
    expect("a step of a CPU", rounded(found), wanted)
    spans = [
        (STEP, 0, 100),
        (DATA, 0, 30),
        ("launch", 30, 90),
        (COMPUTE, 10, 60),  # kernels of the step before hide 20 ms of the loader
        ("nccl's launch", 40, 90),
        (COMMUNICATION, 50, 80),
    ]
    wanted = {STEP: 100, DATA: 10, EVALUATION: 0, COMPUTE: 50, COMMUNICATION: 30, OVERLAP: 10, IDLE: 20}
    (found,) = parts(read(trace_of(0, spans, on_gpu=True)))
    expect("a step of a GPU", rounded(found), wanted)
    print("one step, added up by hand: each part is right, for a CPU and for a GPU")


def check_random_steps(count: int) -> None:
    """Steps of random spans, counted in another way: millisecond by millisecond."""
    draw = random.Random(25)
    for _ in range(count):
        spans: list[tuple[str, int, int]] = [(STEP, 0, LENGTH)]
        for _ in range(draw.randint(0, 12)):
            start = draw.randrange(LENGTH)
            part = draw.choice([DATA, EVALUATION, COMPUTE, COMPUTE, COMMUNICATION, COMMUNICATION])
            spans.append((part, start, start + draw.randint(1, 15)))
        wanted = dict.fromkeys((STEP, DATA, EVALUATION, COMPUTE, COMMUNICATION, OVERLAP, IDLE), 0)
        wanted[STEP] = LENGTH
        for moment in range(LENGTH):
            now = {part for part, start, end in spans[1:] if start <= moment < end}
            does = next((part for part in (EVALUATION, DATA, COMPUTE) if part in now), None)
            if does:
                wanted[does] += 1
            if COMMUNICATION in now:
                wanted[COMMUNICATION] += 1
                wanted[OVERLAP] += does is not None
            elif does is None:
                wanted[IDLE] += 1
        (found,) = parts(read(trace_of(0, spans)))
        expect(f"a random step {spans}", rounded(found), wanted)
    print(f"{count} random steps, counted millisecond by millisecond: each part is right")


def slow_run(own: list[dict[str, float]], transfer: float, clocks: list[float], steps: int = 4) -> list[dict]:
    """Traces of a run: each rank does its own parts, then all-reduces, which ends for all at one moment.

    Args:
        own: for each rank {part: milliseconds} in each step.
        transfer: milliseconds of the all-reduce itself.
        clocks: for each rank, by how many milliseconds its clock is ahead.
    """
    spans: list[list[tuple[str, float, float]]] = [[] for _ in own]
    begin = 1000.0
    for _ in range(steps):
        end = begin + max(sum(parts_of_rank.values()) for parts_of_rank in own) + transfer
        for rank, parts_of_rank in enumerate(own):
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
    expect("shifts of the clocks", [round(1e3 * shift, 6) for shift in clock_shifts(traces)], [0, -2500, 300])
    found = [(rank, round(1e3 * wait, 6)) for rank, wait in last_to_come(traces)]
    expect("who comes last", found, [(1, 80)] * 4)
    longest = [round(1e3 * parts(trace)[0][COMMUNICATION], 6) for trace in traces]
    expect("communication", longest, [100, 20, 95])
    print(f"rank 1 comes 80 ms late: its collective takes {longest[1]:.0f} ms, those of the others")
    print(f"  {longest[0]:.0f} and {longest[2]:.0f} ms; clocks that are 2.5 s apart change nothing")


def check_reasons() -> None:
    """Each answer of the tree, from a run that was made for it."""
    plain = {DATA: 5.0, COMPUTE: 40.0, IDLE: 5.0}
    runs: list[tuple[str, int | None, list[dict[str, float]], float]] = []
    for part in (DATA, EVALUATION, COMPUTE, IDLE):
        for rank in range(3):
            own = [dict(plain) for _ in range(3)]
            own[rank][part] = own[rank].get(part, 0.0) + 60.0
            runs.append((part, rank, own, 10.0))
        runs.append((part, None, [plain | {part: 90.0} for _ in range(3)], 10.0))
    runs.append((COMMUNICATION, None, [dict(plain) for _ in range(3)], 90.0))
    for part, rank, own, transfer in runs:
        traces = [read(trace) for trace in slow_run(own, transfer, clocks=[0.0, 40.0, -70.0])]
        expect(
            f"more {part} on {'all ranks' if rank is None else f'rank {rank}'}",
            diagnose(traces),
            (part, rank),
        )
    print(f"{len(runs)} slow runs: the tree names the part and the rank that were made slow")


def main() -> None:
    check_one_step()
    check_random_steps(count=300)
    check_ranks()
    check_reasons()


if __name__ == "__main__":
    run(main)
