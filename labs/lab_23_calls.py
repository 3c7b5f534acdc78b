"""All workers call each other at once, several calls run in threads, and one answer waits for all callers.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_23_calls.py
Written by:  notebooks/23_rpc.ipynb (edit it there)
"""

from dataclasses import dataclass
from threading import Barrier, Lock

import torch
from lab_23_rpc import call_in_three_ways, start_worker, who
from torch.distributed import rpc

from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.run import run


@dataclass(frozen=True)
class Config:
    guests: int = 4  # a worker runs at most 16 calls at the same time, by default


SEATS = Barrier(Config.guests, timeout=10)
TURN = Lock()  # calls of several guests run in several threads
MEETING: list[tuple[int, torch.futures.Future]] = []


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
        MEETING.clear()  # for the next meeting
        for _, answer in here:
            answer.set_result(sorted(guest for guest, _ in here))
    return mine


def main(cfg: Config) -> None:
    with process_group(smallest=2) as group:  # for our reports; RPC itself needs no process group
        workers = start_worker()
        heard = [rpc.rpc_sync(name, who) for name in workers]
        if heard != list(range(group.world_size)):
            raise CourseError(f"{workers} were called, the ranks that answered are {heard}")

        right = (group.rank + 1) % group.world_size
        there = workers[right]
        answers = call_in_three_ways(there)
        expected = (right, [1.0 + group.rank] * 2, [7.0, 7.0])
        if answers != expected:
            raise CourseError(f"three calls to {there} gave {answers}, expected {expected}")
        print_in_rank_order(f"rpc_sync to {there}: who() = {answers[0]}")
        print_in_rank_order(f"rpc_async to {there}: 1 + my rank = {answers[1]}")
        print_in_rank_order(f"remote: the tensor lay on {there}, fetched it is {answers[2]}")

        if group.rank == 0:
            calls = [rpc.rpc_async(there, sit_down) for _ in range(cfg.guests)]
            seats = sorted(torch.futures.wait_all(calls))
            if seats != list(range(cfg.guests)):
                raise CourseError(f"seats {seats}, expected {cfg.guests} of them")
            print(f"{there} ran {len(seats)} of our calls at the same time, in {len(seats)} threads")
        everyone = rpc.rpc_sync("worker0", meet, args=(group.rank, group.world_size))
        if everyone != list(range(group.world_size)):
            raise CourseError(f"meet() answered when only {everyone} were there")
        print_on_rank_0(f"meet() answered when all were there: {everyone}")
        rpc.shutdown()  # waits for all workers, and until no call is under way


if __name__ == "__main__":
    run(main, Config())
