"""A save of the training script, held up in its middle: not to be read before it is complete.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_11/proof_saving.py
"""

import contextlib
import errno
import io
import os
import tempfile
import threading
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.utils.data import DataLoader

from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.parity import assert_all_equal, parameters

import lab_10_train as script
import lab_11_checkpointing as checkpointing


class Run:
    """The script's parts, as its ``train`` puts them together."""

    def __init__(self, folder: Path, ranks: script.Ranks, *more: str) -> None:
        options = script.parse(["--float64", "--checkpoints", str(folder), "--keep", "2", *more])
        data = script.digits()
        to_train, _ = script.loaders(data, options, ranks)
        self.loader: DataLoader = to_train
        self.trainer = script.Trainer(data, options, ranks, to_train.batch_sampler.steps)
        self.checkpoints = script.open_checkpoints(self.trainer, data)

    def steps(self, count: int) -> None:
        """The next ``count`` steps of the first epoch."""
        self.loader.batch_sampler.done = self.trainer.step
        batches = iter(self.loader)
        for _ in range(count):
            images, labels = next(batches)
            self.trainer.train_step(images, labels)

    def save(self) -> None:
        self.checkpoints.save(self.trainer.step)

    def state(self) -> list[tuple[str, torch.Tensor]]:
        """Copies of all parameters, and of the momentum of each."""
        tensors = [(name, tensor.clone()) for name, tensor in parameters(self.trainer.ddp)]
        for number, state in enumerate(self.trainer.optimizer.state.values()):
            tensors.append((f"momentum {number}", state["momentum_buffer"].clone()))
        return tensors


@contextlib.contextmanager
def writer(write):
    """Have DCP write files by ``write(original, self, plan, planner)``."""
    original = dcp.FileSystemWriter.write_data
    dcp.FileSystemWriter.write_data = lambda self, plan, planner: write(original, self, plan, planner)
    try:
        yield
    finally:
        dcp.FileSystemWriter.write_data = original


def names(folder: Path) -> list[str]:
    """What lies in the folder, the same for all ranks. Collective."""
    dist.barrier()
    entries = sorted(path.name for path in folder.glob("step_*"))
    dist.barrier()
    return entries


def expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise CourseError(f"{what}: {found}, expected {wanted}")
    print_on_rank_0(f"{what}: {found}")


def held_up(one: Run, folder: Path) -> list[tuple[str, torch.Tensor]]:
    """Save after step 2, with a writer that waits until step 3 is done; return what step 2 had."""
    reached = threading.Event()
    gate = threading.Event()

    def wait_at_the_gate(original, self, plan, planner):
        reached.set()
        gate.wait()
        return original(self, plan, planner)

    one.steps(2)
    after_step_2 = one.state()
    with writer(wait_at_the_gate):
        one.save()
        try:
            reached.wait()
            expect("while it is written", names(folder), ["step_00000002.part"])
            expect("to resume from", checkpointing.complete_in(folder), [])
            one.steps(1)
            print_on_rank_0("step 3 is done meanwhile")
        finally:
            gate.set()
        one.checkpoints.wait()
    expect("when it is written", names(folder), ["step_00000002"])
    return after_step_2


def disk_is_full(one: Run, folder: Path, ranks: script.Ranks) -> None:
    """The last rank cannot write; no rank calls that a checkpoint, and training continues."""

    def fail_on_the_last_rank(original, self, plan, planner):
        if ranks.rank == ranks.size - 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(self, plan, planner)

    stderr = io.StringIO()
    with writer(fail_on_the_last_rank), contextlib.redirect_stderr(stderr):
        one.save()
        saved = one.checkpoints.wait()
    print_on_rank_0(stderr.getvalue().strip())
    expect("saved on a full disk", saved, False)
    expect("in the folder", names(folder), ["step_00000002"])
    one.steps(1)
    one.save()
    expect("saved when there is room again", one.checkpoints.wait(), True)
    expect("in the folder", names(folder), ["step_00000002", "step_00000004"])
    one.steps(1)
    one.save()
    one.checkpoints.wait()
    expect("the newest two", names(folder), ["step_00000004", "step_00000005"])


def main() -> None:
    with process_group() as group, tempfile.TemporaryDirectory() as own:
        shared_folder = [own]
        dist.broadcast_object_list(shared_folder, src=0)
        folder = Path(shared_folder[0]) / "run"
        ranks = script.Ranks(group.rank, group.world_size, group.device)
        one = Run(folder, ranks)
        after_step_2 = held_up(one, folder)
        other = Run(folder, ranks)
        other.trainer.step = other.checkpoints.resume()
        assert_all_equal("resumed", other.state(), after_step_2, tolerance=0.0)
        other.steps(1)
        assert_all_equal("step 3 after a restart", other.state(), one.state(), tolerance=1e-12)
        print_on_rank_0("a new trainer has what step 2 had, to the last bit, and its step 3 is the same")
        disk_is_full(one, folder, ranks)
        dist.barrier()


if __name__ == "__main__":
    run(main)
