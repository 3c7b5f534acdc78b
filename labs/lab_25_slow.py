"""Three slow runs, traced on all ranks: in each of them one rank holds the others up, for another reason.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_25_slow.py
Written by:  notebooks/25_see_it.ipynb

The work of a layer is a sleep of known length, so that busy processors do not change the answer. It runs on
the CPU, on a machine with GPUs, too.
"""

import gc
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from lab_25_diagnose import diagnose
from lab_25_reader import (
    COMMUNICATION,
    COMPUTE,
    DATA,
    EVALUATION,
    LAUNCH,
    OVERLAP,
    Event,
    Trace,
    calls_by_step,
    clock_shifts,
    common,
    last_to_come,
    merged,
    parts,
    read,
    without,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile, record_function, schedule
from torch.utils.data import DataLoader, IterableDataset

from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results, results_folder
from shared.runtime.run import run

WIDTH = 64


@dataclass(frozen=True)
class Config:
    layers: int = 4
    forward_s: float = 0.01  # of a layer
    backward_s: float = 0.02
    late_s: float = 0.4  # how much more the slow rank does in each step
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

    def slow_down(self, part: str) -> None:
        """From now on do ``late_s`` more of this part in each step."""
        if part == DATA:
            self.data.seconds = self.cfg.late_s
        elif part == EVALUATION:
            self.evaluation_s = self.cfg.late_s
        elif part == COMPUTE:
            self.model.forward_s += self.cfg.late_s / self.cfg.layers

    def step(self) -> None:
        x = next(self.batches)
        loss = self.ddp(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.evaluation_s:  # without DDP, so that nobody else has to take part
            with record_function(EVALUATION), torch.no_grad():
                Work.apply(x, self.evaluation_s, 0.0)


def traced(part: str, slow: int, path: Path, cfg: Config, group: Group) -> None:
    """Train while rank ``slow`` does more of ``part``, and write this rank's trace. Collective."""
    training = Training(cfg)
    if group.rank == slow:
        training.slow_down(part)
    path.parent.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    with profile(
        schedule=schedule(wait=0, warmup=1, active=cfg.steps, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
        acc_events=True,
    ) as profiler:
        for _ in range(1 + cfg.steps):
            training.step()
            profiler.step()
    dist.barrier()


def moved(trace: Trace, seconds: float) -> Trace:
    """The trace as a clock would have written it that is ahead by ``seconds``."""
    steps = [(start + seconds, end + seconds) for start, end in trace.steps]
    events = [Event(one.kind, one.name, one.start + seconds, one.end + seconds) for one in trace.events]
    return replace(trace, steps=steps, events=events)


def check(part: str, slow: int, traces: list[Trace], cfg: Config) -> None:
    """What the traces must say; nothing of it depends on how fast this machine is.

    Raises:
        CourseError: they say something else.
    """
    name = f"{part} on rank {slow}"
    verdict = diagnose(traces)
    if verdict != (part, slow):
        raise CourseError(f"{name}: the tree says {verdict}, late are {last_to_come(traces)}")
    ahead = [moved(trace, 3.0 * trace.rank) for trace in traces]
    clocks = [b - a for a, b in zip(clock_shifts(traces), clock_shifts(ahead), strict=True)]
    if diagnose(ahead) != verdict or [round(shift, 3) for shift in clocks] != [-3 * t.rank for t in traces]:
        raise CourseError(f"{name}: with other clocks the tree says {diagnose(ahead)}, shifts are {clocks}")
    waited = 0
    for calls in calls_by_step(traces):
        firsts = [one.end - one.start for one in calls[0]]
        fast = [seconds for rank, seconds in enumerate(firsts) if rank != slow]
        waited += min(fast) - firsts[slow] > cfg.late_s / 4
    if 2 * waited <= cfg.steps:
        raise CourseError(f"{name}: only in {waited} steps the first collective is short on the slow rank")


def check_overlap(name: str, traces: list[Trace], slow: int) -> None:
    """DDP hands over buckets while backward goes on, and so those who wait do it during backward, in part."""
    for trace in traces:
        for step in trace.steps:
            launches = common([step], trace.spans(LAUNCH))
            layers = [(one.start, one.end) for one in trace.events if one.name == "WorkBackward"]
            backward = common([step], layers)
            if not launches[0][0] < backward[-1][0] < launches[-1][0]:  # all on one thread: an order, no race
                raise CourseError(f"{name}: rank {trace.rank} hands over its buckets after backward")
        if trace.rank != slow and not any(step[OVERLAP] > 0 for step in parts(trace)):
            raise CourseError(f"{name}: rank {trace.rank} communicates only while it does nothing else")


def timeline(traces: list[Trace], shortest_s: float = 2e-3) -> list[dict[str, list]]:
    """For each rank {part: spans} of the second step, in seconds since the first rank began it.

    The window is the same for all ranks. For a picture: what is shorter than ``shortest_s`` is left out.
    """
    shifts = clock_shifts(traces)
    begin = min(trace.steps[1][0] + shift for trace, shift in zip(traces, shifts, strict=True))
    end = min(trace.steps[1][1] + shift for trace, shift in zip(traces, shifts, strict=True))
    found = []
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
        found.append(kept)
    return found


def main(cfg: Config) -> None:
    os.environ["RANK_BY_RANK_DEVICE"] = "cpu"
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would complain that there is no GPU
    with process_group(smallest=2, timeout_s=120) as group:
        last = group.world_size - 1
        runs = {DATA: last, EVALUATION: 0, COMPUTE: group.world_size // 2}
        recorded = {}
        for part, slow in runs.items():
            folder = results_folder() / f"slow_{part}"
            traced(part, slow, folder / f"rank{group.rank}.json", cfg, group)
            traces = []
            for rank in range(group.world_size):
                text = (folder / f"rank{rank}.json").read_text(encoding="utf-8")
                traces.append(read(json.loads(text)))
            check(part, slow, traces, cfg)
            check_overlap(f"{part} on rank {slow}", traces, slow)
            print_on_rank_0(
                f"{part:10} on rank {slow}: found, and the others' first collective is the long one"
            )
            recorded[part] = {"slow": slow, "timeline": timeline(traces)}
            gc.collect()
        record_results("lab_25_slow", recorded)


if __name__ == "__main__":
    run(main, Config())
