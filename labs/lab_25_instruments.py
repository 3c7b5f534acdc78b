"""torch's own instruments beside ours: collectives, buckets, memory, an empty trace, and Python's collector.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_25_instruments.py
Written by:  notebooks/25_see_it.ipynb
"""

import gc
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from lab_25_reader import COMMUNICATION, COMPUTE, read
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile, schedule

from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import gather_on_rank_0, print_on_rank_0
from shared.runtime.results import record_results, results_folder
from shared.runtime.run import run
from shared.training.storages import StorageRecorder


@dataclass(frozen=True)
class Config:
    width: int = 128
    layers: int = 3
    rows: int = 64
    bucket_mb: float = 0.05  # less than a layer's weight
    warm_up: int = 2  # steps: DDP lays out its buckets anew after the first one
    gc_steps: int = 12
    gc_every: int = 4  # steps
    gc_objects: int = 400  # that rank 0 makes in a step, and keeps; rank 1 makes half as many, and so on


def net_of(cfg: Config, group: Group) -> nn.Module:
    torch.manual_seed(25)
    layers = [nn.Linear(cfg.width, cfg.width) for _ in range(cfg.layers)]
    return nn.Sequential(*layers).to(group.device)


def profiled(step: Callable[[], None], path: Path, in_time: bool) -> list[str]:
    """The kinds of all events in the trace of three calls of ``step``, of which the last two are recorded.

    In time means: written by ``on_trace_ready``, when the two steps are done. Otherwise we write the trace in
    the last line, as scripts do; by then the schedule has begun its next round.
    """

    def write(profiler: profile) -> None:
        profiler.export_chrome_trace(str(path))

    plan = schedule(wait=0, warmup=1, active=2, repeat=1 if in_time else 0)
    with profile(schedule=plan, on_trace_ready=write if in_time else None, acc_events=True) as profiler:
        for _ in range(3):
            step()
            profiler.step()
    if not in_time:
        write(profiler)
    trace = read(json.loads(path.read_text(encoding="utf-8")))
    return [event.kind for event in trace.events]


def communication(cfg: Config, group: Group) -> dict:
    """The same step seen by our record, by CommDebugMode, by DDP itself and by the trace. Collective."""
    net = net_of(cfg, group)
    ddp = DistributedDataParallel(net, bucket_cap_mb=cfg.bucket_mb)
    x = torch.rand(cfg.rows, cfg.width, device=group.device)

    def step() -> None:
        ddp(x).square().mean().backward()
        net.zero_grad()

    for _ in range(cfg.warm_up):
        step()
    with record() as log:
        step()
    with CommDebugMode() as mode:
        step()
    path = results_folder() / f"instruments_rank{group.rank}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    kinds = profiled(step, path, in_time=True)
    logged = ddp._get_ddp_logging_data()
    buckets = [int(size) for size in logged["rebuilt_bucket_sizes"].split(", ")]
    counts = {
        "our record": log.count("all_reduce"),
        "CommDebugMode": mode.get_total_counts(),
        "DDP's logging data": len(buckets),
        "the trace, by step": kinds.count(COMMUNICATION) // 2,
    }
    if len(set(counts.values())) != 1:
        raise CourseError(f"all-reduces of a step: {counts}")
    if sum(buckets) != log.bytes("all_reduce"):
        raise CourseError(
            f"DDP's buckets hold {sum(buckets):,} bytes, reduced are {log.bytes('all_reduce'):,}"
        )
    print_on_rank_0(f"all-reduces of a step: {counts}")
    print_on_rank_0(f"DDP's buckets: {buckets} bytes, as our record says")
    times = sorted(name for name in logged if name.startswith("avg_"))
    print_on_rank_0(f"DDP's times, in nanoseconds: {', '.join(times)}")

    late = profiled(step, path, in_time=False)
    if late or COMPUTE not in kinds:
        raise CourseError(f"in time: {len(kinds)} events, later {len(late)}: the second was to be empty")
    print_on_rank_0("a trace that is written when its round is over: no event in it")
    return {"counts": counts, "buckets": buckets}


def memory(cfg: Config, group: Group) -> None:
    """The peak of a step by MemTracker and by our recorder of lesson 19."""
    peaks = {}
    for name in ("MemTracker", "our recorder"):
        net = net_of(cfg, group)
        x = torch.rand(cfg.rows, cfg.width, device=group.device)
        if name == "MemTracker":
            tracker = MemTracker()
            tracker.track_external(net, x)
            with tracker:
                net(x).square().mean().backward()
            peaks[name] = tracker.get_tracker_snapshot("peak")[group.device]["Total"]
        else:
            with StorageRecorder([*net.parameters(), x]) as recorder:
                net(x).square().mean().backward()
            peaks[name] = recorder.peak
    if abs(peaks["MemTracker"] / peaks["our recorder"] - 1) > 0.1:
        raise CourseError(f"peaks of a step, in bytes: {peaks}")
    print_on_rank_0("peak of a step: MemTracker and our recorder agree within 10 %")


def collections(by_hand: bool, cfg: Config, group: Group) -> list[int]:
    """The steps in which Python's collector ran on this rank. Collective."""
    steps = []
    number = 0

    def note(phase: str, info: dict) -> None:
        if phase == "start":
            steps.append(number)

    kept: list[list[list]] = []
    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(700, 10, 10)  # as Python 3.11 has it
    if by_hand:
        gc.disable()
    gc.callbacks.append(note)
    for number in range(cfg.gc_steps):
        kept.append([[] for _ in range(cfg.gc_objects // (group.rank + 1))])
        if by_hand and number % cfg.gc_every == 0:
            gc.collect()
        dist.barrier()
    gc.callbacks.remove(note)
    gc.enable()
    gc.set_threshold(*before)
    return sorted(set(steps))


def collector(cfg: Config, group: Group) -> dict:
    """When the ranks collect garbage, left alone and by hand, and what ``gc.freeze`` does. Collective."""
    results = {}
    for way, by_hand in (("by itself", False), ("by hand", True)):
        ranks = gather_on_rank_0(collections(by_hand, cfg, group))
        results[way] = ranks
        if ranks and by_hand and ranks != [list(range(0, cfg.gc_steps, cfg.gc_every))] * group.world_size:
            raise CourseError(f"by hand, all ranks were to collect in the same steps: {ranks}")
        if ranks and not by_hand and ranks[0] == ranks[1]:
            raise CourseError(f"left alone, ranks 0 and 1 were to collect in different steps: {ranks}")
    print_on_rank_0("the collector left alone: ranks 0 and 1 collect in different steps")
    print_on_rank_0(f"the collector by hand: all ranks collect in the same steps, each {cfg.gc_every}th")
    before = len(gc.get_objects())
    gc.freeze()
    after = len(gc.get_objects())
    if before < 10_000 or after > before / 10:
        raise CourseError(f"gc.freeze: of {before:,} objects {after:,} are left to look at")
    print_on_rank_0("gc.freeze: less than a tenth of all objects is left for a collection to look at")
    gc.unfreeze()
    return results


def main(cfg: Config) -> None:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would complain that there is no GPU
    with process_group(smallest=2, timeout_s=120) as group:
        seen = communication(cfg, group)
        memory(cfg, group)
        seen["collector"] = collector(cfg, group)
        record_results("lab_25_instruments", seen)


if __name__ == "__main__":
    run(main, Config())
