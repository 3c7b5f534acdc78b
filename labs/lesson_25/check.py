"""Check of exercise 25. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType

from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

REASONS = ("data", "synchronization", "straggler", "communication", "launches")
STEPS = 7
SEEDS = (1, 2, 3)
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@dataclass(frozen=True)
class Work:
    """What a rank does in a step; times in milliseconds."""

    loads: float = 1.0
    layers: int = 12
    kernels: int = 1  # of a layer
    forward: float = 1.0  # of a layer; backward takes twice as long
    launch: float = 0.01  # of a kernel
    python: float = 0.0  # after each synchronization in the middle of the step; 0: there is none
    early: float = 2.0  # of the all-reduce in the middle of backward, which the rest of it can hide
    transfer: float = 2.0  # of the all-reduce at the end of backward
    loads_ahead: bool = False  # it waits for the loss, to print it, after it has loaded the next batch


@dataclass(frozen=True)
class Run:
    """A run and its right answer: what one rank does, or all of them do, in place of ``usual``."""

    reason: str
    rank: int | None
    ranks: int
    slow: Work
    usual: Work = Work()


class Gpu:
    """One rank: a CPU that launches, and a GPU that computes in one stream and communicates in another."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.cpu = 0.0  # milliseconds: what is done until now
        self.compute = 0.0
        self.communicate = 0.0
        self.events: list[tuple[str, str, float, float]] = []

    def about(self, milliseconds: float) -> float:
        return milliseconds * self.draw.uniform(0.9, 1.1)

    def loads(self, milliseconds: float) -> None:
        begin = self.cpu
        self.cpu += self.about(milliseconds)
        self.events.append(("user_annotation", LOADER, begin, self.cpu))

    def launches(self, milliseconds: float) -> None:
        begin = self.cpu
        self.cpu += self.about(milliseconds)
        self.events.append(("cuda_runtime", "cudaLaunchKernel", begin, self.cpu))

    def computes(self, milliseconds: float, launch: float) -> None:
        self.launches(launch)
        begin = max(self.cpu, self.compute)
        self.compute = begin + self.about(milliseconds)
        self.events.append(("kernel", "ampere_sgemm_128x64_tn", begin, self.compute))

    def synchronizes(self) -> None:
        begin = self.cpu
        self.cpu = max(self.cpu, self.compute, self.communicate) + 0.005
        self.events.append(("cuda_runtime", "cudaStreamSynchronize", begin, self.cpu))

    def layers(self, count: int, work: Work, milliseconds: float) -> None:
        for _ in range(count):
            for _ in range(work.kernels):
                self.computes(milliseconds / work.kernels, work.launch)
            if work.python:
                self.synchronizes()
                self.cpu += self.about(work.python)

    def enters(self, launch: float) -> float:
        """When this rank's all-reduce begins: what it sends has been computed, and the stream is free."""
        self.launches(launch)
        return max(self.cpu, self.compute, self.communicate)

    def leaves(self, entered: float, end: float) -> None:
        self.communicate = end
        self.events.append(("kernel", ALL_REDUCE, entered, end))


def all_reduce(gpus: list[Gpu], works: list[Work], milliseconds: float) -> None:
    """It begins on each rank when that one enters, and ends for all at one moment."""
    entered = [gpu.enters(work.launch) for gpu, work in zip(gpus, works, strict=True)]
    end = max(entered) + gpus[0].about(milliseconds)
    for gpu, moment in zip(gpus, entered, strict=True):
        gpu.leaves(moment, end)


def record(run: Run, seed: int) -> list[dict]:
    """The traces of all ranks, as torch writes them."""
    gpus = [Gpu(random.Random(f"{seed} {rank}")) for rank in range(run.ranks)]
    draw = random.Random(seed)
    works = [run.slow if run.rank in (None, rank) else run.usual for rank in range(run.ranks)]
    delayed = {0: (0 if run.rank else run.ranks - 1), 3: draw.randrange(run.ranks)}  # {step: rank}
    for step in range(STEPS):
        begins = [gpu.cpu for gpu in gpus]
        for rank, (gpu, work) in enumerate(zip(gpus, works, strict=True)):
            gpu.loads(work.loads)
            if work.loads_ahead:
                gpu.synchronizes()
            if delayed.get(step) == rank:
                gpu.computes(300.0, work.launch)
            gpu.layers(work.layers, work, work.forward)
            gpu.layers(work.layers // 2, work, 2 * work.forward)
        all_reduce(gpus, works, works[0].early)
        for gpu, work in zip(gpus, works, strict=True):
            gpu.layers(work.layers - work.layers // 2, work, 2 * work.forward)
        all_reduce(gpus, works, works[0].transfer)
        for gpu, work, begin in zip(gpus, works, begins, strict=True):
            gpu.compute = max(gpu.compute, gpu.communicate)  # the optimizer needs the gradients
            gpu.computes(work.forward / 2, work.launch)
            if not work.loads_ahead:
                gpu.synchronizes()
            gpu.events.append(("user_annotation", f"ProfilerStep#{step + 3}", begin, gpu.cpu))
    clocks = [draw.uniform(-3e6, 3e6) for _ in gpus]
    return [
        _trace(rank, gpu, 4e9 + clock) for (rank, gpu), clock in zip(enumerate(gpus), clocks, strict=True)
    ]


def _trace(rank: int, gpu: Gpu, first_us: float) -> dict:
    streams = {"ncc": 24, "amp": 7}
    events: list[dict] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]
    for category, name, begin, end in gpu.events:
        thread = streams.get(name[:3], 1)
        when = {"ts": first_us + 1e3 * begin, "dur": 1e3 * (end - begin)}
        events.append({"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, **when})
    gpu.draw.shuffle(events)  # torch does not sort them
    return {"distributedInfo": {"backend": "nccl", "rank": rank}, "traceEvents": events}


def runs() -> list[Run]:
    """Each reason, on one rank where it can be and on all."""
    usual = Work()
    loads = replace(usual, loads=70.0)
    waits = replace(usual, python=2.5)
    computes = replace(usual, forward=2.6)
    sends = replace(usual, early=45.0, transfer=45.0)
    hides = replace(sends, loads=55.0, loads_ahead=True)  # the CPU loads while the GPU is busy
    # Most of a step the CPU loads, and the GPU computes meanwhile: what nothing hides is an all-reduce.
    hidden_loader = replace(usual, forward=3.0, loads=90.0, transfer=30.0, loads_ahead=True)
    # The longest all-reduce goes on while the GPU computes: what nothing hides is the loader.
    hidden_reduce = replace(usual, forward=3.5, early=36.0, loads=25.0)
    short = replace(usual, forward=0.1, kernels=10, launch=0.15)
    return [
        Run("data", None, 2, loads),
        Run("data", 1, 3, loads),
        Run("data", 0, 2, loads),
        Run("synchronization", None, 3, waits),
        Run("synchronization", 0, 4, waits),
        Run("straggler", 2, 4, computes),
        Run("straggler", 1, 2, computes),
        Run("straggler", 0, 3, computes),
        Run("communication", None, 2, sends),
        Run("communication", None, 4, hides),
        Run("launches", None, 2, short),
        Run("launches", None, 3, short),
        Run("communication", None, 3, hidden_loader),
        Run("data", None, 4, hidden_reduce),
    ]


def judge(diagnose: Callable, run: Run, seed: int) -> None:
    answer = diagnose(record(run, seed))
    try:
        reason, rank = answer
    except (TypeError, ValueError):
        raise Wrong(f"diagnose returns {answer!r}, expected a reason and a rank") from None
    if reason not in REASONS:
        raise Wrong(f"the reason is {reason!r}, expected one of {', '.join(REASONS)}")
    case = f"{run.reason} on {'all' if run.rank is None else 'rank ' + str(run.rank)} of {run.ranks} ranks"
    if reason != run.reason:
        raise Wrong(f"{case}: your reason is {reason}, on rank {rank}")
    if rank != run.rank:
        raise Wrong(f"{case}: your rank is {rank}")


def verify(answer: ModuleType, group: Group) -> str:
    cases = runs()
    for run in cases:
        for seed in SEEDS:
            judge(answer.diagnose, run, seed)
    return f"{len(cases) * len(SEEDS)} runs, {len(REASONS)} reasons: each is named, with its rank. Well done."


if __name__ == "__main__":
    check_exercise("25_why_slow", verify, ranks=2)
