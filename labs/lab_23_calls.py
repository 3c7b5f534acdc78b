"""Call functions on other workers: wait for the result, fetch it later, or leave it where it is.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_23_calls.py
Written by:  notebooks/23_rpc.ipynb
"""

import warnings
from dataclasses import dataclass
from threading import Barrier, Lock

import torch
import torch.distributed as dist
from torch.distributed import rpc

from shared.comm.rpc import stay_on_loopback
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.run import run


@dataclass(frozen=True)
class Config:
    timeout_s: float = 20.0  # of a call; the default is 60
    threads: int = 8  # calls that a worker runs at the same time; the default is 16
    guests: int = 4


MINE = {"rank": -1}  # every process has its own
SEATS = Barrier(Config.guests, timeout=10)
TURN = Lock()  # calls of several guests run in several threads
MEETING: list[tuple[int, torch.futures.Future]] = []


def who() -> int:
    """The rank of the process that runs this."""
    return MINE["rank"]


def sit_down() -> int:
    """Return when four calls are in here at the same time. Each holds a thread of the worker meanwhile."""
    return SEATS.wait()


@rpc.functions.async_execution
def meet(rank: int, guests: int) -> torch.futures.Future[list[int]]:
    """Answer all guests when the last has come. What waits is a Future; no thread is held."""
    mine = torch.futures.Future()
    with TURN:
        MEETING.append((rank, mine))
        here = list(MEETING)
    if len(here) == guests:  # true for the last one only
        for _, answer in here:
            answer.set_result(sorted(guest for guest, _ in here))
    return mine


def start_rpc(group: Group, cfg: Config) -> None:
    """Become ``worker{rank}``; returns when all workers are there.

    Where to meet comes from ``env://``: torchrun has set MASTER_ADDR and MASTER_PORT. Name, rank and
    world size are ours to give. Source: https://docs.pytorch.org/docs/stable/rpc.html
    """
    stay_on_loopback()
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=cfg.threads, rpc_timeout=cfg.timeout_s)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns of its own code: pytorch/pytorch#149393
        rpc.init_rpc(
            f"worker{group.rank}", rank=group.rank, world_size=group.world_size, rpc_backend_options=options
        )


def main(cfg: Config) -> None:
    with process_group(smallest=2) as group:  # for our reports; RPC itself needs no process group
        MINE["rank"] = group.rank
        start_rpc(group, cfg)
        dist.barrier()
        heard = [rpc.rpc_sync(f"worker{rank}", who) for rank in range(group.world_size)]
        assert heard == list(range(group.world_size)), heard

        there = f"worker{(group.rank + 1) % group.world_size}"
        rank = rpc.rpc_sync(there, who)  # waits for the result
        future = rpc.rpc_async(there, torch.add, args=(torch.ones(2), group.rank))  # returns at once
        reference = rpc.remote(there, torch.full, args=((2,), 7.0))  # at once; the result stays there
        total = future.wait().tolist()
        copy = reference.to_here().tolist()
        assert (f"worker{rank}", total, copy) == (there, [1.0 + group.rank] * 2, [7.0, 7.0])
        print_in_rank_order(f"rpc_sync to {there}: who() = {rank}")
        print_in_rank_order(f"rpc_async to {there}: 1 + my rank = {total}")
        print_in_rank_order(f"remote: the tensor lies on {reference.owner_name()}, fetched it is {copy}")

        if group.rank == 0:
            calls = [rpc.rpc_async(there, sit_down) for _ in range(cfg.guests)]
            seats = sorted(torch.futures.wait_all(calls))
            assert seats == list(range(cfg.guests))
            print(f"{there} ran {len(seats)} of our calls at the same time, in {len(seats)} threads")
        everyone = rpc.rpc_sync("worker0", meet, args=(group.rank, group.world_size))
        assert everyone == list(range(group.world_size))
        print_on_rank_0(f"meet() answered when all were there: {everyone}")
        rpc.shutdown()  # waits for all workers, and until no call is under way


if __name__ == "__main__":
    run(main, Config())
