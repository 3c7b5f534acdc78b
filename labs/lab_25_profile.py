"""Training under torch.profiler: a trace for each rank, read as JSON. Torch and Python, nothing else.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_25_profile.py
Written by:  notebooks/25_see_it.ipynb

With a folder as argument it keeps the traces there. Open one by hand in https://ui.perfetto.dev.
"""

import json
import os
import socket
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a group, or it holds it: exit code -6, lesson 08
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.data import DataLoader, TensorDataset

WARM_UP = 3  # steps: DDP lays out its buckets anew after the first one
ACTIVE = 3  # steps in the trace
BATCH, WIDTH, LAYERS = 16, 64, 4
BUCKET_MB = 0.03  # so that there are several buckets
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would complain that there is no GPU


def train_step(ddp: nn.Module, optimizer: torch.optim.Optimizer, batches, device: torch.device) -> None:
    x, y = next(batches)  # torch names this part by itself
    with record_function("forward"):
        loss = F.cross_entropy(ddp(x.to(device)), y.to(device))
    with record_function("backward"):
        loss.backward()
    optimizer.step()  # and this one
    optimizer.zero_grad()


def record_trace(path: Path, device: torch.device) -> nn.Module:
    """Train under the profiler and write this rank's trace to ``path``."""
    torch.manual_seed(25)
    layers = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    ddp = DistributedDataParallel(nn.Sequential(*layers).to(device), bucket_cap_mb=BUCKET_MB)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    rows = BATCH * (WARM_UP + ACTIVE)
    data = TensorDataset(torch.rand(rows, WIDTH), torch.randint(WIDTH, (rows,)))
    batches = iter(DataLoader(data, BATCH))
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=WARM_UP, active=ACTIVE, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
        record_shapes=True,
        acc_events=True,  # without it the profiler warns that it forgets
    ) as profiler:
        for _ in range(WARM_UP + ACTIVE):
            train_step(ddp, optimizer, batches, device)
            profiler.step()  # begins the next step of the trace
    return ddp


def read_trace(path: Path) -> dict[str, list[dict]]:
    """{what: its events, in order}. Each has a name, a start ``ts`` and a duration ``dur`` (microseconds)."""
    trace = json.loads(path.read_text())
    assert trace["distributedInfo"]["rank"] == dist.get_rank()
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]  # with a start and a duration
    events: dict[str, list[dict]] = {
        "steps": [],
        "data": [],
        "ours": [],
        "communication": [],
        "operations": [],
        "kernels": [],
    }
    for event in sorted(spans, key=lambda event: event["ts"]):
        name, kind = event["name"], event["cat"]
        if kind == "cpu_op":
            events["operations"].append(event)
        elif kind == "kernel":
            events["kernels"].append(event)
        elif kind == "user_annotation" and name.startswith("ProfilerStep#"):
            events["steps"].append(event)
        elif kind == "user_annotation" and name.startswith("enumerate(DataLoader)#"):
            events["data"].append(event)
        elif kind == "user_annotation" and name.startswith(("gloo:", "nccl:")):
            events["communication"].append(event)
        elif kind == "user_annotation" and name in ("forward", "backward"):
            events["ours"].append(event)
    return events


def numbers_in(event: dict) -> int | None:
    """How many numbers an operation's first tensor has; None if the trace does not say."""
    sizes = event["args"].get("Input Dims")  # torch 2.11 does not have it
    while sizes and isinstance(sizes[0], list):
        sizes = sizes[0]
    return sizes[0] if sizes else None


def check(found: dict[str, list[dict]], ddp: nn.Module) -> str:
    """What the trace says of a step, compared with what we know about it."""
    assert len(found["steps"]) == ACTIVE, f"{len(found['steps'])} steps in the trace"
    assert len(found["data"]) == ACTIVE, f"{len(found['data'])} batches in the trace"
    wanted = sum(p.numel() for p in ddp.parameters())
    python_thread = found["steps"][0]["tid"]
    sizes: list[int | None] = []
    for step in found["steps"]:
        end = step["ts"] + step["dur"]
        started = [event for event in found["operations"] if step["ts"] <= event["ts"] < end]
        sizes = [numbers_in(event) for event in started if event["name"] == "c10d::allreduce_"]
        if None not in sizes:
            assert sum(sizes) == wanted, f"all-reduced {sum(sizes)} numbers, the model has {wanted}"
    count = len(found["communication"])
    assert count == ACTIVE * len(sizes), f"{count} all-reduces in the trace, {len(sizes)} started in a step"
    if not found["kernels"]:  # a CPU: gloo works on two threads of its own
        threads = {event["tid"] for event in found["communication"]}
        assert python_thread not in threads, "gloo works on Python's thread"
        assert len(threads) <= 2, f"gloo works on {len(threads)} threads"
    names = {event["name"] for event in found["operations"]}
    assert {"aten::addmm", "aten::tanh_backward", "c10d::allreduce_"} <= names, "operations are missing"
    lines = [
        f"{'data':14} {found['data'][0]['name']}",
        f"{'our own names':14} {', '.join(sorted({event['name'] for event in found['ours']}))}",
        f"{'compute':14} operations such as aten::addmm and aten::tanh_backward",
        f"{'communication':14} {len(sizes)} x {found['communication'][0]['name']}, {sizes} numbers",
    ]
    return "\n".join(lines)


def setup() -> torch.device:
    """Join the group that the launcher describes; return this rank's device: a GPU of its own, or the CPU.

    The CPU is for jobs without a GPU, and for RANK_BY_RANK_DEVICE=cpu. A job with too few GPUs ends here.
    """
    device = torch.device("cpu")
    gpu = "none"
    if torch.cuda.device_count() > 0 and os.environ.get("RANK_BY_RANK_DEVICE") != "cpu":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        gpu = str(torch.cuda.get_device_properties(device).uuid)
    store, rank, world_size = next(dist.rendezvous("env://"))
    store.set(f"GPU of rank {rank}", gpu)  # ranks that differ must know it before the group forms
    gpus = set(store.multi_get([f"GPU of rank {other}" for other in range(world_size)])) - {b"none"}
    if 0 < len(gpus) < world_size:
        mine = f"rank {rank} on {socket.gethostname()} has {device}"
        ways = "start one rank for each GPU, or all with RANK_BY_RANK_DEVICE=cpu"
        sys.exit(f"{world_size} ranks, {len(gpus)} GPUs ({mine}): {ways}")
    backend = "nccl" if gpus else "gloo"
    bound = device if gpus else None
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, device_id=bound)
    if rank == 0:
        print(f"{world_size} ranks on {device.type} with {backend}")
    return device


def main() -> None:
    device = setup()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"rank{dist.get_rank()}.json"
        ddp = record_trace(path, device)
        summary = check(read_trace(path), ddp)
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"{ACTIVE} steps on each of {dist.get_world_size()} ranks; in each step:\n{summary}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
