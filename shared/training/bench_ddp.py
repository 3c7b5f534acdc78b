"""The time of a training step: without communication, by our three DDPs, torch's, and apex's if installed.

    torchrun --standalone --nproc-per-node=4 -m shared.training.bench_ddp

Not a test. All ways take their steps in turns, so that they see the same load; medians count. Groups of
fewer ranks are parts of the same run. ``--model resnet50 --image 224 --batch 128`` is what seed 004 measured.
"""

import argparse
import os
from contextlib import nullcontext

import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from shared.comm.paced import GBIT, Wire, on_wire
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.ddp_ways import Step, from_lab, wrappers

WARM_UP = 2  # DDP settles its buckets after the first step


def measure(members: dist.ProcessGroup, wire: Wire | None, args: argparse.Namespace, group: Group) -> dict:
    """{way: medians of forward, backward with communication, and their sum, in seconds}."""
    ways = wrappers(members, args.bucket_cap_mb, wire)
    steps = {name: Step(wrap, args, group) for name, wrap in ways.items()}
    for _ in range(WARM_UP + args.steps):
        for name, step in steps.items():
            with on_wire(wire) if wire and name != "torch" else nullcontext():
                step(members)
    return {name: step.medians(WARM_UP) for name, step in steps.items()}


def sweep(members: dist.ProcessGroup, wire: Wire, args: argparse.Namespace, group: Group) -> list[dict]:
    """The overlapped DDP's step on a paced wire by bucket_cap_mb, and what the alpha-beta model expects.

    The model gets the moments at which gradients are ready from steps without communication.
    """
    if not args.caps:
        return []
    ranks = dist.get_world_size(members)
    overlapped, fill_buckets = from_lab("overlapped", "OverlappedDDP"), from_lab("overlapped", "fill_buckets")
    alone = Step(lambda model: model, args, group)
    steps = {cap: Step(lambda m, cap=cap: overlapped(m, cap, members), args, group) for cap in args.caps}
    for _ in range(WARM_UP + args.steps):
        alone(members)
        for step in steps.values():
            with on_wire(wire):
                step(members)
    ready = alone.ready(WARM_UP)
    trainable = [p for p in alone.model.parameters() if p.requires_grad]
    rows = []
    for cap, step in steps.items():
        done = 0.0
        for bucket in fill_buckets(trainable, sorted(ready, key=ready.get), (cap * 2**20,) * 2):
            size = sum(trainable[i].nbytes for i in bucket)
            done = max(done, *(ready[i] for i in bucket)) + wire.seconds(size, ranks)
        buckets = len(step.model.buckets)
        rows.append(
            {"cap": cap, "buckets": buckets, "predicted": done, "took": step.medians(WARM_UP)["total"]}
        )
    return rows


def timeline(way: str, members: dist.ProcessGroup, args: argparse.Namespace, group: Group) -> list[tuple]:
    """(name, start, end) in seconds of forward, backward and each all-reduce of a step, by torch.profiler."""
    step = Step(wrappers(members, args.bucket_cap_mb, None)[way], args, group)
    for _ in range(WARM_UP):
        step(members)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would report that there is no GPU
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step(members)
    wanted = ("forward", "backward", "gloo:all_reduce")
    spans = [(e.name, e.time_range.start, e.time_range.end) for e in profiler.events() if e.name in wanted]
    spans.remove(max((s for s in spans if s[0] == "gloo:all_reduce"), key=lambda s: s[1]))  # Step's own
    begin = min(start for name, start, _ in spans if name == "forward")
    return [
        (name, (start - begin) / 1e6, (end - begin) / 1e6) for name, start, end in spans if start >= begin
    ]


def table(title: str, rows: dict[int, dict]) -> str:
    """Rows by way, columns by number of processes: milliseconds as total (forward + backward)."""
    lines = [title, f"{'':16} " + " ".join(f"{n:>12} process{'es' if n > 1 else '':2}" for n in rows)]
    for way in max(rows.values(), key=len):
        cells = []
        for measured in rows.values():
            if way not in measured:
                cells.append(" " * 22)
                continue
            f, b, t = (1e3 * measured[way][part] for part in ("forward", "backward", "total"))
            cells.append(f"{f'{t:.0f} ({f:.0f} + {b:.0f})':>22}")
        lines.append(f"{way:16} " + " ".join(cells))
    return "\n".join(lines)


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
    parser.add_argument("--caps", type=float, nargs="*", default=[0.5, 1, 2, 5, 10, 25, 50])
    parser.add_argument("--quick", action="store_true", help="small and few steps, as in the lesson")
    args = parser.parse_args()
    if args.quick:
        args.image, args.batch, args.steps, args.caps, args.gbit = 32, 2, 2, [], 5.0
    return args


def main() -> None:
    with process_group(timeout_s=600, report=False) as group:
        args = arguments(group.world_size)
        print_on_rank_0(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the first step")
        print_on_rank_0(f"{args.model}, {args.batch} images of {args.image} x {args.image} by process")
        free, paced, swept, timelines = {}, {}, [], {}
        parts = {n: dist.new_group(list(range(n))) for n in sorted({*args.processes, args.paced} - {0})}
        for n in args.processes:
            if group.rank < n:
                free[n] = measure(parts[n], None, args, group)
            dist.barrier()
        if group.rank == 0:
            print(table("milliseconds for a step: total (forward + backward)", free))
        if group.rank < (n := args.paced):
            wire = Wire(args.alpha_us * 1e-6, args.gbit * GBIT)
            timelines = {way: timeline(way, parts[n], args, group) for way in ("flat", "overlapped")}
            paced[n] = measure(parts[n], wire, args, group)
            if group.rank == 0:
                print(table(f"on a wire of {args.gbit:g} Gbit/s", paced))
            swept = sweep(parts[n], wire, args, group)
        dist.barrier()
        for row in swept if group.rank == 0 else []:
            took, model = 1e3 * row["took"], 1e3 * row["predicted"]
            buckets = f"cap {row['cap']:4g} MiB: {row['buckets']:2} buckets"
            print(f"{buckets}, {took:.0f} ms, by the model {model:.0f}")
        record_results("bench_ddp", {"free": free, "paced": paced, "sweep": swept, "timelines": timelines})


if __name__ == "__main__":
    run(main)
