"""The time of a training step: without communication, by our three DDPs and by torch's.

    torchrun --standalone --nproc-per-node=4 labs/lesson_09/bench_ddp.py

Not a test. All ways take their steps in turns, so that they see the same load; medians count. Groups of
fewer ranks are parts of the same run. ``--model resnet50 --image 224 --batch 128`` is what the old table of
lesson 09 measured. Taught there.
"""

import argparse
import os
from contextlib import nullcontext
from typing import cast

import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from shared.comm.paced import GBIT, Wire, on_wire
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run

from lesson_09.ddp_ways import Step, wrappers

WARM_UP = 2  # DDP settles its buckets after the first step
ALL_REDUCE = "gloo:all_reduce"


def measure(members: dist.ProcessGroup, wire: Wire | None, args: argparse.Namespace, group: Group) -> dict:
    """{way: medians of forward, backward with communication, and their sum, in seconds}."""
    ways = wrappers(members, args.bucket_cap_mb, wire)
    steps = {name: Step(wrap, args, group) for name, wrap in ways.items()}
    for _ in range(WARM_UP + args.steps):
        for name, step in steps.items():
            with on_wire(wire) if wire and name != "torch" else nullcontext():
                step(members)
    return {name: step.medians(WARM_UP) for name, step in steps.items()}


def timeline(way: str, members: dist.ProcessGroup, args: argparse.Namespace, group: Group) -> list[tuple]:
    """(name, start, end) in seconds of forward, backward, finish and each all-reduce, by torch.profiler.

    *finish* is where a rank waits for all-reduces: after backward, or at the end of OverlappedDDP's backward.
    """
    step = Step(wrappers(members, args.bucket_cap_mb, None)[way], args, group)
    if hasattr(step.model, "_finish"):
        step.model._finish = record_function("finish")(step.model._finish)
    for _ in range(WARM_UP):
        step(members)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would report that there is no GPU
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step(members)
    wanted = ("forward", "backward", "finish", ALL_REDUCE)
    events = [event for event in profiler.events() if event.name in wanted]
    last = max(
        (event for event in events if event.name == ALL_REDUCE), key=lambda event: event.time_range.start
    )
    events.remove(last)  # Step's own
    begin = min(event.time_range.start for event in events if event.name == "forward")
    spans = []
    for event in events:
        start = event.time_range.start - begin  # in microseconds
        end = event.time_range.end - begin
        if start >= 0:
            spans.append((event.name, start / 1e6, end / 1e6))
    return spans


def table(title: str, rows: dict[int, dict]) -> str:
    """Rows by way, columns by number of processes: milliseconds as total (forward + backward)."""
    heads = [f"{n:>12} process{'es' if n > 1 else '':2}" for n in rows]
    lines = [title, f"{'':16} {' '.join(heads)}"]
    for way in max(rows.values(), key=len):
        cells = [_cell(measured.get(way)) for measured in rows.values()]
        lines.append(f"{way:16} {' '.join(cells)}")
    return "\n".join(lines)


def _cell(medians: dict[str, float] | None) -> str:
    if medians is None:
        return " " * 22
    forward, backward, total = (1e3 * medians[part] for part in ("forward", "backward", "total"))
    return f"{f'{total:.0f} ({forward:.0f} + {backward:.0f})':>22}"


def arguments(ranks: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure a training step by our DDPs and torch's.")
    parser.add_argument("--model", default="resnet18", help="a model of torchvision")
    parser.add_argument("--image", type=int, default=64, help="height and width")
    parser.add_argument("--batch", type=int, default=8, help="images by process")
    parser.add_argument("--processes", type=int, nargs="+", default=[n for n in (1, 2, 4, 8) if n <= ranks])
    parser.add_argument("--steps", type=int, default=20, help="measured steps of each way")
    parser.add_argument("--bucket-cap-mb", type=float, default=None)
    parser.add_argument("--paced", type=int, default=2, help="processes on a slow wire; 0: none")
    parser.add_argument("--gbit", type=float, default=1.0, help="of that wire, per second")
    parser.add_argument("--alpha-us", type=float, default=500.0, help="for each message on it")
    parser.add_argument("--quick", action="store_true", help="small and few steps, as in the lesson")
    args = parser.parse_args()
    if args.quick:
        args.image = 32
        args.batch = 2
        args.steps = 2
        args.gbit = 5.0
    return args


def on_a_free_wire(
    parts: dict[int, dist.ProcessGroup], args: argparse.Namespace, group: Group
) -> dict[int, dict]:
    """{number of processes: what ``measure`` returns}, on this rank only of groups that it belongs to."""
    measured = {}
    for n in args.processes:
        if group.rank < n:
            measured[n] = measure(parts[n], None, args, group)
        dist.barrier()
    if group.rank == 0:
        print(table("milliseconds for a step: total (forward + backward)", measured))
    return measured


def on_a_paced_wire(members: dist.ProcessGroup, args: argparse.Namespace, group: Group) -> dict:
    """Medians and timelines of the first ``--paced`` ranks."""
    wire = Wire(args.alpha_us * 1e-6, args.gbit * GBIT)
    timelines = {way: timeline(way, members, args, group) for way in ("flat", "overlapped")}
    paced = {args.paced: measure(members, wire, args, group)}
    if group.rank == 0:
        print(table(f"on a wire of {args.gbit:g} Gbit/s", paced))
    return {"paced": paced, "timelines": timelines}


def main() -> None:
    with process_group(timeout_s=600, report=False) as group:
        args = arguments(group.world_size)
        print_on_rank_0(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the first step")
        print_on_rank_0(f"{args.model}, {args.batch} images of {args.image} x {args.image} by process")
        parts = {}
        for n in sorted({*args.processes, args.paced} - {0}):
            # On ranks that are not in it, new_group returns no group; they do not use it.
            parts[n] = cast(dist.ProcessGroup, dist.new_group(list(range(n))))
        results = {"free": on_a_free_wire(parts, args, group), "paced": {}, "timelines": {}}
        if group.rank < args.paced:
            results |= on_a_paced_wire(parts[args.paced], args, group)
        dist.barrier()
        record_results("bench_ddp", results)


if __name__ == "__main__":
    run(main)
