"""Five ways to find each other: the same group each time.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_02_five_ways.py
Written by:  notebooks/02_rendezvous.ipynb
"""

import gc
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from shared.runtime.errors import ParityError
from shared.runtime.group import pick_device, read_environment
from shared.runtime.ports import HERE, free_ports
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run


@dataclass(frozen=True)
class Config:
    timeout: timedelta = timedelta(seconds=20)


def ways_besides_env(
    rank: int, n: int, ports: list[int], folder: str, cfg: Config
) -> dict[str, Callable[[], dict]]:
    """{way: what it passes to ``init_process_group``}. A store is made when its way is tried.

    Args:
        ports: two numbers of free ports, known to all ranks.
        folder: an empty folder that all ranks can write to.

    Source: the documentation of ``init_process_group`` and of ``torch.distributed.Store``.
    """
    me = {"rank": rank, "world_size": n}

    def tcp_store() -> dist.TCPStore:
        return dist.TCPStore(HERE, ports[1], n, is_master=rank == 0, timeout=cfg.timeout)

    return {
        "file://": lambda: {"init_method": f"file://{folder}/meeting", **me},
        "FileStore": lambda: {"store": dist.FileStore(f"{folder}/store", n), **me},
        "tcp://": lambda: {"init_method": f"tcp://{HERE}:{ports[0]}", **me},
        "TCPStore": lambda: {"store": tcp_store(), **me},
    }


def reference(n: int) -> list[int]:
    """What a group of n finds together: each rank puts rank + 1 in its own place, and the places add up."""
    return list(range(1, n + 1))


def what_we_are(n: int, device: torch.device) -> list[int]:
    """The same, by this group. Collective."""
    mine = torch.zeros(n, dtype=torch.int64, device=device)
    mine[dist.get_rank()] = dist.get_rank() + 1
    dist.all_reduce(mine)
    return mine.tolist()


def leave() -> None:
    dist.barrier()
    dist.destroy_process_group()
    gc.collect()  # a store goes with its last owner


def main(cfg: Config) -> None:
    rank, local_rank, n = read_environment()
    device = pick_device(local_rank)
    backend = dist.get_default_backend_for_device(device)
    if device.type == "cuda":
        torch.cuda.set_device(device)

    # torchrun has set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, so nothing else is passed.
    ways = {"env://": dict}
    seconds = {}
    for way in ("env://", "file://", "FileStore", "tcp://", "TCPStore"):
        if dist.is_initialized():
            leave()
        started = time.perf_counter()
        dist.init_process_group(backend, timeout=cfg.timeout, **ways[way]())
        seconds[way] = time.perf_counter() - started
        who, found = (dist.get_rank(), dist.get_world_size()), what_we_are(n, device)
        if who != (rank, n) or found != reference(n):
            raise ParityError(
                f"{way}: rank, size {who} found {found}, expected {(rank, n)} and {reference(n)}"
            )
        print_on_rank_0(f"{way:9} {n} ranks, together {found}")
        if way == "env://":
            # What the other ways have to know beforehand: rank 0 chooses it and tells it here.
            plan = [free_ports(2), tempfile.mkdtemp(prefix="rank-by-rank-")] if rank == 0 else [None, None]
            dist.broadcast_object_list(plan)
            ways |= ways_besides_env(rank, n, *plan, cfg)
            # Before torch 2.15 this variable made each rank believe that torchrun serves every port.
            os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)

    record_results("lab_02_five_ways", {"seconds": seconds})
    if rank == 0:
        Path(plan[1]).rmdir()  # an empty folder only: both files went with their groups
        print("The files of file:// and FileStore are gone: the last to leave deletes them.")
    leave()


if __name__ == "__main__":
    run(main, Config())
