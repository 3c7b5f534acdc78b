"""What a missing barrier and a missing map_location do to a checkpoint.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_11/proof_too_early.py
"""

import io
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shared.runtime.errors import CourseError, ParityError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.results import results_folder
from shared.runtime.run import run
from shared.training.models import ConvNet
from shared.training.parity import assert_all_equal, assert_same_on_every_rank, parameters

from lab_11_rank0 import read, save_and_load


@dataclass(frozen=True)
class Config:
    steps: int = 3
    batch: int = 16  # images per rank and step


# {what rank 0 has written so far: what comes of reading that}
TOO_EARLY = {
    "no file": "FileNotFoundError",
    "half a file": "cannot be read",
    "an older file": "loads, and notices nothing; the replicas differ",
}


def train(cfg: Config, group: Group) -> DistributedDataParallel:
    """A model after a few steps, equal on every rank."""
    ddp = DistributedDataParallel(ConvNet().to(group.device))
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    for _ in range(cfg.steps):
        images = torch.rand(cfg.batch, 1, 8, 8, device=group.device)
        optimizer.zero_grad()
        ddp(images).square().mean().backward()
        optimizer.step()
    return ddp


def check_the_pattern(ddp: DistributedDataParallel, path: Path, group: Group) -> None:
    """With both barriers every rank has loaded what rank 0 has saved."""
    model = ConvNet().to(group.device)  # other parameters on each rank
    save_and_load(ddp, model, path, group.device)
    assert_same_on_every_rank("loaded", parameters(model))
    assert_all_equal("loaded", parameters(model), parameters(ddp), 0.0)


def begin_to_write(so_far: str, state: dict, path: Path) -> None:
    """What a slow rank 0 has written by the time when the others read."""
    path.unlink(missing_ok=True)
    if so_far == "half a file":
        buffer = io.BytesIO()
        torch.save(state, buffer)
        whole = buffer.getvalue()
        path.write_bytes(whole[: len(whole) // 2])
    elif so_far == "an older file":
        torch.save(ConvNet().state_dict(), path)


def read_too_early(model: nn.Module, path: Path, group: Group) -> str:
    """Read without waiting for rank 0; return what came of it."""
    try:
        read(model, path, group.device)
    except FileNotFoundError:
        return "FileNotFoundError"
    except (EOFError, OSError, RuntimeError):  # which of them depends on where the file ends
        return "cannot be read"
    return "loads, and notices nothing"


def without_the_barrier(so_far: str, ddp: DistributedDataParallel, path: Path, group: Group) -> str:
    """Save and load as without the first barrier: all read before rank 0 has finished writing."""
    if group.rank == 0:
        begin_to_write(so_far, ddp.module.state_dict(), path)
    dist.barrier()
    model = ddp.module
    outcome = "has not finished writing"
    if group.rank > 0:
        model = ConvNet().to(group.device)
        outcome = read_too_early(model, path, group)
    dist.barrier()
    if so_far == "an older file":
        try:
            assert_same_on_every_rank("after loading", parameters(model))
        except ParityError:
            outcome += "; the replicas differ"
    return outcome


def without_map_location(path: Path) -> str:
    """What happens on a machine without GPUs to a file that was saved on the first GPU."""
    # No GPU needed: while `forging`, torch.save notes for each tensor that it came from cuda:0.
    forging = True
    torch.serialization.register_package(0, lambda _: "cuda:0" if forging else None, lambda *_: None)
    torch.save({"weight": torch.ones(3)}, path)
    forging = False
    for there in ("cpu", "meta"):
        if torch.load(path, map_location=there)["weight"].device.type != there:
            raise CourseError(f"map_location={there} was not obeyed")
    try:
        return f"goes to {torch.load(path)['weight'].device}"
    except RuntimeError as error:
        return f"fails: {str(error).partition(' but')[0]}"


def main(cfg: Config) -> None:
    with process_group(seed=11, timeout_s=20) as group:
        path = results_folder() / f"proof_too_early.{group.world_size}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        ddp = train(cfg, group)
        check_the_pattern(ddp, path, group)
        print_on_rank_0(f"with both barriers: {group.world_size} ranks have loaded what rank 0 saved")
        for so_far, expected in TOO_EARLY.items():
            outcome = without_the_barrier(so_far, ddp, path, group)
            print_in_rank_order(f"read too early, {so_far}: {outcome}")
            if group.rank > 0 and outcome != expected:
                raise CourseError(f"{so_far}: {outcome}, expected {expected}")
        if group.rank == 0:
            print(f"saved on cuda:0, loaded without map_location: {without_map_location(path)}")
            path.unlink()


if __name__ == "__main__":
    run(main, Config())
