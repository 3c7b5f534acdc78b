"""A process group as a context manager. ``init_process_group`` itself is taught in lessons 00 and 02."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from shared.runtime.errors import CourseError, InputError


@dataclass(frozen=True)
class Group:
    """Who this process is: ``rank`` of ``world_size``, on ``device``, talking through ``backend``."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device
    backend: str


def read_environment() -> tuple[int, int, int]:
    """Return (rank, local rank, world size) as torchrun set them, or raise ``InputError``."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise InputError(
            f"{', '.join(missing)} not set. Start a lab with torchrun: "
            "torchrun --standalone --nproc-per-node=2 LAB.py"
        )
    rank, local_rank, world_size = (int(os.environ[name]) for name in names)
    return rank, local_rank, world_size


def pick_device(local_rank: int) -> torch.device:
    """``cuda:LOCAL_RANK`` when this machine has a GPU for each of its ranks, else the CPU.

    ``RANK_BY_RANK_DEVICE=cpu`` forces the CPU.
    """
    wanted = os.environ.get("RANK_BY_RANK_DEVICE", "cuda")
    if wanted not in ("cpu", "cuda"):
        raise InputError(f"RANK_BY_RANK_DEVICE is {wanted!r}; set it to cpu or cuda")
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if wanted == "cuda" and torch.cuda.is_available():
        if torch.cuda.device_count() >= ranks_here:
            return torch.device("cuda", local_rank)
        if local_rank == 0:
            print(f"{ranks_here} ranks share {torch.cuda.device_count()} GPU(s): using the CPU instead")
    return torch.device("cpu")


@contextmanager
def process_group(
    *, seed: int = 0, timeout_s: float = 30.0, smallest: int = 1, largest: int = 8, report: bool = True
) -> Iterator[Group]:
    """Join the group that torchrun prepared, yield a ``Group``, and tear the group down.

    Backend: nccl on GPUs, gloo on the CPU. Seeds: every rank gets ``seed + rank``, so ranks that must
    agree have to do so by communicating. Each collective may take ``timeout_s`` seconds. At the
    start and at the end every rank is heard; a missing one raises. Rank 0 reports the ranks
    that took part, unless ``report`` is False.

    Raises:
        InputError: not started by torchrun, or the world size is not within smallest..largest.
        CourseError: not all expected ranks took part.
    """
    rank, local_rank, world_size = read_environment()
    if not smallest <= world_size <= largest:
        raise InputError(
            f"this lab runs with {smallest} to {largest} ranks, not {world_size}: change --nproc-per-node"
        )
    device = pick_device(local_rank)
    backend = "gloo"
    if device.type == "cuda":
        backend = "nccl"
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if device.type == "cuda" else None,
    )
    torch.manual_seed(seed + rank)
    np.random.seed(seed + rank)
    random.seed(seed + rank)
    group = Group(rank, local_rank, world_size, device, backend)
    _hear_every_rank(group, "at the start")
    yield group
    _hear_every_rank(group, "at the end")
    if report and rank == 0:
        ranks = ", ".join(str(r) for r in range(world_size))
        print(f"ranks that took part: {ranks} (of {world_size}, {backend}, {device.type})")
    dist.barrier()
    dist.destroy_process_group()


def _hear_every_rank(group: Group, moment: str) -> None:
    heard = torch.zeros(group.world_size, dtype=torch.int64, device=group.device)
    heard[group.rank] = 1
    dist.all_reduce(heard)
    if heard.tolist() != [1] * group.world_size:
        raise CourseError(f"{moment}, each of {group.world_size} ranks must be heard once: {heard.tolist()}")
