"""Every rank saves its own slice: at once, in the background, and killed in the middle of it.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_11_shards.py
Written by:  notebooks/11_checkpoints.ipynb
"""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.results import record_results, results_folder
from shared.runtime.run import run
from shared.training.checkpoint import save_atomically
from shared.training.data import load_images
from shared.training.models import ConvNet


@dataclass(frozen=True)
class Config:
    channels: int = 128
    batch: int = 48
    slack: float = 0.0075  # per rank: names, shapes and padding, as a fraction of the numbers' bytes


def reference(cfg: Config) -> dict[str, torch.Tensor]:
    """What one process holds after a step: each parameter and Adam's two averages for it."""
    torch.manual_seed(11)
    data = load_images("digits")
    model = ConvNet(channels=cfg.channels)
    optimizer = torch.optim.Adam(model.parameters())
    F.cross_entropy(model(data.train_x[: cfg.batch]), data.train_y[: cfg.batch]).backward()
    optimizer.step()
    state = {}
    for name, p in model.named_parameters():
        state[name] = p.detach()
        state |= {f"{name} {part}": optimizer.state[p][part] for part in ("exp_avg", "exp_avg_sq")}
    return state


class GatedWriter(dcp.FileSystemWriter):
    """Writes only when the gate is open: a slow disk."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.gate = threading.Event()

    def write_data(self, plan, planner):
        self.gate.wait(10)
        return super().write_data(plan, planner)


class DyingWriter(dcp.FileSystemWriter):
    """All ranks have written their slices; rank 0 is killed before it writes the table of contents."""

    def finish(self, metadata, results):
        os.kill(os.getpid(), signal.SIGKILL)


def save_in_background(state: dict, folder: Path, group: Group) -> dict[str, float]:
    """Start a save, change the state, end the save. Returns seconds until control came back, and in all."""
    own_group = dist.new_group(backend="gloo")  # collectives of two threads must not meet in one group
    writer = GatedWriter(folder)
    start = time.perf_counter()
    future = dcp.async_save(state, storage_writer=writer, process_group=own_group)
    returned = time.perf_counter() - start
    if future.done() or (folder / ".metadata").exists():
        raise CourseError("the save was to be under way still")
    for tensor in state.values():
        tensor.to_local().zero_()  # training goes on; the save has its own copy
    dist.all_reduce(torch.ones(1, device=group.device))  # and so does its communication
    writer.gate.set()
    future.result()  # before the program ends or the next save starts
    return {"async_save returns": returned, "async_save is complete": time.perf_counter() - start}


def timed(work: Callable, *args, **kwargs) -> float:
    start = time.perf_counter()
    work(*args, **kwargs)
    return time.perf_counter() - start


def main(cfg: Config) -> None:
    with process_group(timeout_s=20) as group:
        folder = results_folder() / "lab_11_shards"
        whole = reference(cfg)
        seconds = {}
        if group.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            seconds["torch.save, rank 0"] = timed(torch.save, whole, folder / "plain.pt")
            seconds["save_atomically, rank 0"] = timed(save_atomically, whole, folder / "atomic.pt")
        mesh = init_device_mesh(group.device.type, (group.world_size,))
        state = {n: distribute_tensor(t.to(group.device), mesh, [Shard(0)]) for n, t in whole.items()}
        dist.barrier()
        seconds["dcp.save, all ranks"] = timed(dcp.save, state, checkpoint_id=folder / "step_1")
        seconds |= save_in_background(state, folder / "step_2", group)

        numbers = sum(t.numel() * t.element_size() for t in whole.values())
        slices = [path.stat().st_size for path in sorted((folder / "step_1").glob("*.distcp"))]
        plain = (folder / "plain.pt").stat().st_size
        print_in_rank_order(f"wrote {slices[group.rank]:,} bytes")
        print_on_rank_0(f"torch.save on one rank writes {plain:,} bytes; the numbers alone have {numbers:,}")
        for size in (plain, sum(slices)):
            if not numbers <= size <= (1 + cfg.slack * group.world_size) * numbers:
                raise CourseError(f"{size:,} bytes were written for {numbers:,} bytes of numbers")
        record_results(
            "lab_11_shards", {"seconds": seconds, "slices": slices, "plain": plain, "numbers": numbers}
        )
        print_on_rank_0("step 3: rank 0 is killed in the middle of the save")
        dcp.async_save(
            state, storage_writer=DyingWriter(folder / "step_3"), process_group=dist.new_group()
        ).result()


if __name__ == "__main__":
    run(main, Config())
