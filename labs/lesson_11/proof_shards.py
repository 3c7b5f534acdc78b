"""Every rank saves its own shard: with training waiting, beside training, on a full disk, and killed.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_11/proof_shards.py
"""

import errno
import os
import shutil
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.results import record_results, results_folder
from shared.runtime.run import run
from shared.training.data import load_images
from shared.training.models import ConvNet


@dataclass(frozen=True)
class Config:
    channels: int = 128
    batch: int = 48
    steps: int = 3  # of training, after a save has begun
    slack: float = 0.0075  # per rank: names, shapes and padding, as a fraction of the numbers' bytes
    limit_s: float = 20.0  # so that a gate that nobody opens ends the lab


ON_A_CPU = StagingOptions(
    use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
)


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
        state[f"{name} exp_avg"] = optimizer.state[p]["exp_avg"]
        state[f"{name} exp_avg_sq"] = optimizer.state[p]["exp_avg_sq"]
    return state


def train_step(state: dict, group: Group) -> None:
    """Stands for a step: it communicates, and changes all that is saved. Doubling is exact in floats."""
    dist.all_reduce(torch.ones(1, device=group.device))
    for tensor in state.values():
        tensor.to_local().mul_(2)


class GatedWriter(dcp.FileSystemWriter):
    """Waits for the gate before it writes, as for a slow disk; notes when it has written."""

    def __init__(self, path: Path, events: list[str], cfg: Config) -> None:
        super().__init__(path)
        self.events = events
        self.limit_s = cfg.limit_s
        self.gate = threading.Event()

    def write_data(self, plan, planner):
        if not self.gate.wait(self.limit_s):
            raise CourseError("nobody has opened the gate: training waits for the writer")
        written = super().write_data(plan, planner)
        self.events.append("written")
        return written


def save_and_train(state: dict, folder: Path, cfg: Config, group: Group) -> list[str]:
    """Save, then train some steps. Returns what happened on this rank, in order."""
    events: list[str] = []
    writer = GatedWriter(folder, events, cfg)
    writer.gate.set()  # nobody could open it later: this rank is in dcp.save
    dcp.save(state, storage_writer=writer)
    for _ in range(cfg.steps):
        train_step(state, group)
        events.append("step")
    return events


def train_beside_the_save(state: dict, folder: Path, cfg: Config, group: Group) -> list[str]:
    """Begin to save, train some steps while nothing can be written yet, then let the save end."""
    events: list[str] = []
    writer = GatedWriter(folder, events, cfg)
    own_group = dist.new_group(backend="gloo")  # collectives of two threads must not meet in one group
    stager = DefaultStager(ON_A_CPU)  # what async_save itself takes when it is given a folder
    future = dcp.async_save(state, storage_writer=writer, async_stager=stager, process_group=own_group)
    for _ in range(cfg.steps):
        train_step(state, group)
        events.append("step")
    if future.done():
        raise CourseError("the save should still have been under way")
    writer.gate.set()
    future.result()  # before the program ends or the next save begins
    stager.close()
    return events


class FullDiskWriter(dcp.FileSystemWriter):
    """The disk of the last rank is full."""

    def write_data(self, plan, planner):
        if dist.get_rank() == dist.get_world_size() - 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write_data(plan, planner)


class KilledWriter(dcp.FileSystemWriter):
    """All ranks but the last write their shards; then the last one is killed."""

    def write_data(self, plan, planner):
        is_last = dist.get_rank() == dist.get_world_size() - 1
        written = None if is_last else super().write_data(plan, planner)
        dist.barrier()  # all others have written
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return written


def give_final_name(part: Path, group: Group) -> None:
    """Call a folder complete: in one step, and after all ranks have written. Collective."""
    dist.barrier()  # dcp.save and future.result() return when the whole checkpoint is there
    if group.rank == 0:
        part.rename(part.with_suffix(""))
    dist.barrier()


def check_bytes(shards: list[int], plain: int, numbers: int, cfg: Config) -> None:
    """Both ways write the numbers once, and little else."""
    for size in (plain, sum(shards)):
        if not numbers <= size <= (1 + cfg.slack * len(shards)) * numbers:
            raise CourseError(f"{size:,} bytes were written for {numbers:,} bytes of numbers")


def main(cfg: Config) -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        folder = results_folder() / "proof_shards"
        whole = reference(cfg)
        if group.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            torch.save(whole, folder / "plain.pt")
        mesh = init_device_mesh(group.device.type, (group.world_size,))
        state = {n: distribute_tensor(t.to(group.device), mesh, [Shard(0)]) for n, t in whole.items()}
        dist.barrier()

        dcp.save(state, checkpoint_id=folder / "latest")
        sizes = [path.stat().st_size for path in sorted((folder / "latest").glob("*.distcp"))]
        plain = (folder / "plain.pt").stat().st_size
        numbers = sum(t.numel() * t.element_size() for t in whole.values())
        print_in_rank_order(f"wrote {sizes[group.rank]:,} bytes")
        print_on_rank_0(f"torch.save on one rank writes {plain:,} bytes; the numbers alone have {numbers:,}")
        check_bytes(sizes, plain, numbers, cfg)
        record_results("11_shards", {"shards": sizes, "plain": plain, "numbers": numbers})

        beside = train_beside_the_save(state, folder / "step_1.part", cfg, group)
        give_final_name(folder / "step_1.part", group)
        waiting = save_and_train(state, folder / "step_2.part", cfg, group)
        give_final_name(folder / "step_2.part", group)
        print_on_rank_0(f"async_save: {', '.join(beside)}")
        print_on_rank_0(f"dcp.save: {', '.join(waiting)}")
        if (beside.index("written"), waiting.index("written")) != (cfg.steps, 0):
            raise CourseError(f"{cfg.steps} steps were to fit into the one save, none into the other")

        try:
            dcp.save(state, storage_writer=FullDiskWriter(folder / "step_3.part"))
        except dcp.api.CheckpointException as error:
            print_in_rank_order(f"step 3: {str(error).splitlines()[-1]}")
        else:
            raise CourseError("each rank should have heard that the last one has a full disk")
        print_on_rank_0(f"rank {group.world_size - 1} is killed while all save over the folder latest")
        dcp.save(state, storage_writer=KilledWriter(folder / "latest"))


if __name__ == "__main__":
    run(main, Config())
