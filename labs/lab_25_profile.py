"""Training under torch.profiler: each rank writes a trace. Torch and Python, nothing else.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_25_profile.py
Written by:  notebooks/25_see_it.ipynb (edit it there)

The option ``--folder`` keeps the traces. Open one by hand in https://ui.perfetto.dev.
"""

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.data import DataLoader, TensorDataset

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU

WARM_UP = 3  # steps: DDP lays out its buckets anew after the first one
LAYERS = 4
BUCKET_MB = 0.03  # so that there are several buckets
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would complain that there is no GPU


def net_of(width: int) -> nn.Module:
    torch.manual_seed(25)
    layers = []
    for _ in range(LAYERS):
        layers += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers)


def batches_of(rows: int, width: int, count: int) -> Iterator[list[torch.Tensor]]:
    """``count`` batches of x (rows, width) and labels (rows)."""
    data = TensorDataset(torch.rand(count * rows, width), torch.randint(width, (count * rows,)))
    return iter(DataLoader(data, rows))


def train_step(
    ddp: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator, device: torch.device
) -> None:
    x, y = next(batches)  # torch names this part by itself
    with record_function("forward"):
        loss = F.cross_entropy(ddp(x.to(device)), y.to(device))
    with record_function("backward"):
        loss.backward()
    optimizer.step()  # and this one
    optimizer.zero_grad()


def record_trace(step: Callable[[], None], path: Path, steps: int, device: torch.device) -> None:
    """Call ``step`` under the profiler; write this rank's trace of the last ``steps`` calls to ``path``."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=WARM_UP, active=steps, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
        record_shapes=True,
        acc_events=True,  # without it the profiler warns that it forgets
    ) as profiler:
        for _ in range(WARM_UP + steps):
            step()
            profiler.step()  # begins the next step of the trace


def main(options: argparse.Namespace) -> None:
    device = setup()
    ddp = DistributedDataParallel(net_of(options.width).to(device), bucket_cap_mb=BUCKET_MB)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    batches = batches_of(options.rows, options.width, WARM_UP + options.steps)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"rank{dist.get_rank()}.json"
        record_trace(lambda: train_step(ddp, optimizer, batches, device), path, options.steps, device)
    dist.barrier()  # no rank leaves while another one still talks to it
    if dist.get_rank() == 0:
        print(f"a trace of {options.steps} steps for each rank, written when they are over")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train under the profiler.")
    parser.add_argument("--folder", type=Path, help="keeps the traces")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rows", type=int, default=16, help="of a batch, on each rank")
    parser.add_argument("--steps", type=int, default=3, help="in the trace")
    main(parser.parse_args())
