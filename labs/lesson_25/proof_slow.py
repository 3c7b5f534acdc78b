"""Three slow runs, traced on all ranks: one rank holds the others up, for two reasons, or they take turns.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_25/proof_slow.py

The work of a layer is a sleep of known length, so that busy processors do not change the answer. It runs on
the CPU, on a machine with GPUs, too.
"""

import gc
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile, record_function, schedule
from torch.utils.data import DataLoader, IterableDataset

from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results, results_folder
from shared.runtime.run import run

import lab_25_profile as script
from lesson_25.proof_diagnose import diagnose, verdict
from lesson_25.proof_reader import (
    COMMUNICATION,
    COMPUTE,
    DATA,
    EVALUATION,
    LAUNCH,
    OVERLAP,
    Trace,
    clock_shifts,
    collectives,
    common,
    last_to_come,
    merged,
    parts,
    read,
    waits,
    without,
)

WIDTH = 64


@dataclass(frozen=True)
class Config:
    layers: int = 4
    forward_s: float = 0.01  # of a layer
    backward_s: float = 0.02
    late_s: float = 0.4  # how much more the late rank does in a step
    steps: int = 4
    warm_up: int = 2  # steps: DDP lays out its buckets anew after the first one
    bucket_mb: float = 0.01  # less than a layer's weight: a bucket for each of them


class Work(torch.autograd.Function):
    """Passes (batch, width) on as it is and takes a given time, in each direction. The profiler sees it."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, forward_s: float, backward_s: float) -> torch.Tensor:
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        time.sleep(ctx.backward_s)
        return gradient, None, None


class Model(nn.Module):
    """(batch, WIDTH) to the same, by layers that take a known time."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(cfg.layers))
        self.forward_s = cfg.forward_s
        self.backward_s = cfg.backward_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = Work.apply(torch.tanh(layer(x)), self.forward_s, self.backward_s)
        return x


class Batches(IterableDataset):
    """Random batches without end. Each takes ``seconds`` to load; nobody loads ahead."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            time.sleep(self.seconds)
            yield torch.rand(8, WIDTH)


class Training:
    """One model that trains on this rank."""

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        torch.manual_seed(25)
        self.model = Model(cfg)
        self.ddp = DistributedDataParallel(self.model, bucket_cap_mb=cfg.bucket_mb)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), 0.1)
        self.data = Batches()
        self.batches = iter(DataLoader(self.data, batch_size=None))
        self.evaluation_s = 0.0
        for _ in range(cfg.warm_up):
            self.step()

    def be_late(self, part: str, late: bool) -> None:
        """From now on do ``late_s`` more of this part in each step, or not."""
        more = self.cfg.late_s if late else 0.0
        if part == DATA:
            self.data.seconds = more
        elif part == EVALUATION:
            self.evaluation_s = more
        elif part == COMPUTE:
            self.model.forward_s = self.cfg.forward_s + more / self.cfg.layers

    def step(self) -> None:
        x = next(self.batches)
        loss = self.ddp(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.evaluation_s:  # without DDP, so that nobody else has to take part
            with record_function(EVALUATION), torch.no_grad():
                Work.apply(x, self.evaluation_s, 0.0)


Late = Callable[[int], int]  # step -> the rank that is late in it


def traced(part: str, late: Late, path: Path, cfg: Config, group: Group) -> None:
    """Train while rank ``late(step)`` does more of ``part``; write this rank's trace. Collective."""
    training = Training(cfg)
    path.parent.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    with profile(
        schedule=schedule(wait=0, warmup=1, active=cfg.steps, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
        acc_events=True,
    ) as profiler:
        for step in range(-1, cfg.steps):  # the first one warms up
            training.be_late(part, group.rank == late(step))
            training.step()
            profiler.step()
    dist.barrier()


def check_complete(path: Path, group: Group) -> None:
    """A trace of the plain lab has each step, and its all-reduces add up to the parameters. Collective.

    Raises:
        CourseError: it has others.
    """
    net = script.net_of(WIDTH)
    ddp = DistributedDataParallel(net, bucket_cap_mb=script.BUCKET_MB)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    steps = 3
    batches = script.batches_of(16, WIDTH, script.WARM_UP + steps)
    path.parent.mkdir(parents=True, exist_ok=True)

    def step() -> None:
        script.train_step(ddp, optimizer, batches, group.device)

    script.record_trace(step, path, steps, group.device)
    spans = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    windows = [event for event in spans if event["name"].startswith("ProfilerStep#")]
    if len(windows) != steps:
        raise CourseError(f"rank {group.rank}: {len(windows)} steps in the trace, of {steps}")
    parameters = sum(p.numel() for p in net.parameters())
    for window in windows:
        end = window["ts"] + window["dur"]
        reduced = 0
        for event in spans:
            if event["name"] == "c10d::allreduce_" and window["ts"] <= event["ts"] < end:
                [[numbers]] = event["args"]["Input Dims"][0]
                reduced += numbers
        if reduced != parameters:
            raise CourseError(f"{window['name']}: all-reduced {reduced} numbers, the model has {parameters}")


def moved(trace: Trace, seconds: float) -> Trace:
    """The trace as a clock would have written it that is ahead by ``seconds``."""
    steps = [(start + seconds, end + seconds) for start, end in trace.steps]
    events = [replace(event, start=event.start + seconds, end=event.end + seconds) for event in trace.events]
    return replace(trace, steps=steps, events=events)


def check(part: str, late: list[int], traces: list[Trace], cfg: Config) -> None:
    """What the traces must say; nothing of it depends on how fast this machine is.

    Args:
        late: for each step the rank that was made late.

    Raises:
        CourseError: they say something else.
    """
    wanted = (part, tuple(sorted(set(late))))
    name = f"{part} on ranks {wanted[1]}"
    blame = diagnose(traces)
    if blame != wanted:
        raise CourseError(f"{name}: the tree says {blame}, late are {last_to_come(traces)}")
    ahead = [moved(trace, 3.0 * trace.rank) for trace in traces]
    before, after = (clock_shifts(ones, collectives(ones)) for ones in (traces, ahead))
    clocks = [b - a for a, b in zip(before, after, strict=True)]
    if diagnose(ahead) != blame or [round(shift, 3) for shift in clocks] != [-3 * t.rank for t in traces]:
        raise CourseError(f"{name}: with other clocks the tree says {diagnose(ahead)}, shifts are {clocks}")
    waited = 0
    calls = collectives(traces)
    for number, rank in enumerate(late):
        start, end = traces[0].steps[number]
        firsts = next(events for events in calls if start <= events[0].start < end)
        seconds = {other: event.end - event.start for other, event in firsts.items()}
        own = seconds.pop(rank)
        waited += min(seconds.values()) - own > cfg.late_s / 4
    if 2 * waited <= cfg.steps:
        raise CourseError(f"{name}: only in {waited} steps the first collective is short on the late rank")


def check_overlap(name: str, traces: list[Trace], late: list[int]) -> None:
    """DDP hands over buckets while backward goes on, and so those who wait do it during backward, in part."""
    for trace, waiting in zip(traces, waits(traces), strict=True):
        for step in trace.steps:
            launches = common([step], trace.spans(LAUNCH))
            layers = [(event.start, event.end) for event in trace.events if event.name == "WorkBackward"]
            backward = common([step], layers)
            if not launches[0][0] < backward[-1][0] < launches[-1][0]:  # all on one thread: an order, no race
                raise CourseError(f"{name}: rank {trace.rank} hands over its buckets after backward")
        overlaps = any(step[OVERLAP] > 0 for step in parts(trace, waiting))
        if not overlaps and set(late) != {trace.rank}:
            raise CourseError(f"{name}: rank {trace.rank} communicates only while it does nothing else")


def timeline(traces: list[Trace], shortest_s: float = 2e-3) -> list[dict[str, list]]:
    """For each rank {part: spans} of the second and third step, in seconds since the first rank began them.

    The window is the same for all ranks. For a picture: what is shorter than ``shortest_s`` is left out.
    """
    shifts = clock_shifts(traces, collectives(traces))
    begin = min(trace.steps[1][0] + shift for trace, shift in zip(traces, shifts, strict=True))
    end = min(trace.steps[2][1] + shift for trace, shift in zip(traces, shifts, strict=True))
    by_rank = []
    for trace, shift in zip(traces, shifts, strict=True):
        spans = {}
        for part in (EVALUATION, DATA, COMPUTE, COMMUNICATION):
            there = [(first + shift, last + shift + shortest_s) for first, last in trace.spans(part)]
            closed = [(first, last - shortest_s) for first, last in merged(there)]  # without small holes
            spans[part] = common([(begin, end)], closed)
        spans[COMPUTE] = without(spans[COMPUTE], merged(spans[DATA] + spans[EVALUATION]))
        kept = {}
        for part, ones in spans.items():
            kept[part] = [(a - begin, b - begin) for a, b in ones if b - a > shortest_s]
        by_rank.append(kept)
    return by_rank


def main(cfg: Config) -> None:
    os.environ["RANK_BY_RANK_DEVICE"] = "cpu"
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would complain that there is no GPU
    with process_group(smallest=2, timeout_s=120) as group:
        ranks = group.world_size
        check_complete(results_folder() / "complete" / f"rank{group.rank}.json", group)
        print_on_rank_0("the plain lab: each step is in the trace, and its all-reduces are the parameters")
        runs: dict[str, Late] = {
            DATA: lambda step: ranks - 1,
            EVALUATION: lambda step: 0,
            COMPUTE: lambda step: step % ranks,
        }
        recorded = {}
        for part, late in runs.items():
            folder = results_folder() / f"slow_{part}"
            traced(part, late, folder / f"rank{group.rank}.json", cfg, group)
            traces = []
            for rank in range(ranks):
                text = (folder / f"rank{rank}.json").read_text(encoding="utf-8")
                traces.append(read(json.loads(text)))
            by_step = [late(step) for step in range(cfg.steps)]
            check(part, by_step, traces, cfg)
            check_overlap(part, traces, by_step)
            recorded[part] = {"verdict": verdict(traces), "late": by_step, "timeline": timeline(traces)}
            gc.collect()
        print_on_rank_0(f"{len(recorded)} slow runs: in each the tree finds the part and the ranks")
        record_results("25_slow", recorded)


if __name__ == "__main__":
    run(main, Config())
