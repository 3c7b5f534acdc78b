"""Who writes what into the store, and who waits for whom, when the ranks come one after another.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_02_who_waits.py
Written by:  notebooks/02_rendezvous.ipynb
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from shared.runtime.errors import CourseError
from shared.runtime.group import read_environment
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run


@dataclass(frozen=True)
class Config:
    apart_s: float = 0.3  # rank 1 comes this much later than rank 0, rank 2 twice as much, and so on
    timeout: timedelta = timedelta(seconds=20)


class NotingStore(dist.Store):
    """A store that passes each request on to ``inner`` and notes it in ``notes``.

    A note is (operation, keys, start, end), in seconds of the machine's monotonic clock, which all
    processes of a machine share. ``init_process_group`` takes any ``dist.Store``, also one written in Python.
    """

    def __init__(self, inner: dist.Store) -> None:
        super().__init__()
        self.inner = inner
        self.notes: list[tuple[str, list[str], float, float]] = []

    def _noted(self, operation: str, keys: list[str], function: Callable, *args) -> object:
        start = time.monotonic()
        result = function(*args)
        self.notes.append((operation, keys, start, time.monotonic()))
        return result

    def set(self, key: str, value: str) -> None:
        self._noted("set", [key], self.inner.set, key, value)

    def get(self, key: str) -> bytes:
        return self._noted("get", [key], self.inner.get, key)

    def add(self, key: str, amount: int) -> int:
        return self._noted("add", [key], self.inner.add, key, amount)

    def wait(self, keys: list[str], *timeout: timedelta) -> None:
        self._noted("wait", keys, self.inner.wait, keys, *timeout)

    def check(self, keys: list[str]) -> bool:
        return self._noted("check", keys, self.inner.check, keys)

    def set_timeout(self, timeout: timedelta) -> None:
        self.inner.set_timeout(timeout)


def rank_in(key: str) -> int:
    """gloo keeps the address of rank r under a key that ends in /r."""
    return int(key.rpartition("/")[2])


def main(cfg: Config) -> None:
    rank, _, n = read_environment()
    # The store that torchrun runs for its ranks. The prefix keeps our keys apart from others in it.
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    inner = dist.TCPStore(address, port, is_master=False, timeout=cfg.timeout)
    inner = dist.PrefixStore("who waits", inner)
    inner.set(f"awake {rank}", "yes")
    inner.wait([f"awake {r}" for r in range(n)])  # imports take longer on one rank than on another

    time.sleep(rank * cfg.apart_s)
    store = NotingStore(inner)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=n, timeout=cfg.timeout)
    notes = list(store.notes)  # what forming the group took, without what follows

    found = torch.ones(1)
    dist.all_reduce(found)
    if found.item() != n:
        raise CourseError(f"{found.item():.0f} ranks answered, expected {n}")
    written = [rank_in(key) for operation, keys, *_ in notes if operation == "set" for key in keys]
    read = [rank_in(key) for operation, keys, *_ in notes if operation == "get" for key in keys]
    if written != [rank] or sorted(set(read) | {rank}) != list(range(n)):
        raise CourseError(f"rank {rank} wrote {written} and read {read}")
    print_in_rank_order(f"wrote the address of rank {written[0]}, read those of {sorted(read)}")

    waits = [
        {"for": rank_in(keys[-1]), "start": start, "end": end}
        for operation, keys, start, end in notes
        if operation == "wait"
    ]
    writes = next(start for operation, _, start, _ in notes if operation == "set")
    done = notes[-1][3]
    record_results("lab_02_who_waits", {"writes": writes, "waits": waits, "done": done})
    times = [None] * n
    dist.all_gather_object(times, (writes, done))
    if min(done for _, done in times) < max(writes for writes, _ in times):
        raise CourseError("a rank was done before the last one wrote its address")
    print_on_rank_0("No rank was done before the last address was written.")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run(main, Config())
