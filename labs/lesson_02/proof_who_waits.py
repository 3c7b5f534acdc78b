"""Who writes what into the store, and who waits for whom, when the ranks come one after another.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_02/proof_who_waits.py
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from shared.runtime.errors import CourseError
from shared.runtime.group import read_environment
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run

from lab_02_ways import check


@dataclass(frozen=True)
class Config:
    apart_s: float = 0.3  # rank 1 comes this much later than rank 0, rank 2 twice as much, and so on
    timeout: timedelta = timedelta(seconds=20)


@dataclass(frozen=True)
class Request:
    """One request to the store: ``start`` and ``end`` are seconds of the machine's monotonic clock."""

    operation: str
    keys: list[str]
    start: float
    end: float


class NotingStore(dist.Store):
    """A store that passes each request on to ``inner`` and notes it in ``requests``.

    All processes of a machine share its monotonic clock, so their notes can be compared.
    ``init_process_group`` takes any ``dist.Store``, also one written in Python.
    """

    def __init__(self, inner: dist.Store) -> None:
        super().__init__()
        self.inner = inner
        self.requests: list[Request] = []

    def _noted(self, operation: str, keys: list[str], function: Callable, *args) -> object:
        start = time.monotonic()
        result = function(*args)
        self.requests.append(Request(operation, keys, start, time.monotonic()))
        return result

    def set(self, key: str, value: str) -> None:
        self._noted("set", [key], self.inner.set, key, value)

    def get(self, key: str) -> bytes:
        return self._noted("get", [key], self.inner.get, key)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return self._noted("multi_get", keys, self.inner.multi_get, keys)

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


def ranks_in(requests: list[Request], operation: str) -> list[int]:
    """Of which ranks the addresses are that these requests write (``set``) or read (``get``), in order."""
    return [rank_in(request.keys[-1]) for request in requests if request.operation == operation]


def torchruns_store(cfg: Config) -> dist.Store:
    """The store that torchrun's agent serves. The prefix keeps our keys apart from the agent's."""
    address = os.environ["MASTER_ADDR"]
    port = int(os.environ["MASTER_PORT"])
    return dist.PrefixStore("who waits", dist.TCPStore(address, port, is_master=False, timeout=cfg.timeout))


def main(cfg: Config) -> None:
    rank, _, n = read_environment()
    inner = torchruns_store(cfg)
    inner.set(f"awake {rank}", "yes")
    inner.wait([f"awake {r}" for r in range(n)])  # imports take longer on one rank than on another

    time.sleep(rank * cfg.apart_s)
    store = NotingStore(inner)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=n, timeout=cfg.timeout)
    requests = list(store.requests)  # what forming the group took, without what follows
    check("a store that takes notes", rank, n)

    written = ranks_in(requests, "set")
    read = ranks_in(requests, "get")
    if written != [rank] or sorted(read) != list(range(n)):
        raise CourseError(
            f"rank {rank} should have written its own address and read each once: {written}, {read}"
        )
    print_in_rank_order(f"wrote the address of rank {written[0]}, read those of {sorted(read)}")

    (writes,) = [request.start for request in requests if request.operation == "set"]
    waits = []
    for request in requests:
        if request.operation == "wait":
            waits.append({"for": rank_in(request.keys[-1]), "start": request.start, "end": request.end})
    done = requests[-1].end
    record_results("02_who_waits", {"writes": writes, "waits": waits, "done": done, "reads": len(read)})
    times = [None] * n
    dist.all_gather_object(times, (writes, done))
    last_write = max(writes for writes, _ in times)
    first_done = min(done for _, done in times)
    if first_done < last_write:
        raise CourseError("a rank was done before the last one wrote its address")
    print_on_rank_0("No rank was done before the last address was written.")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run(main, Config())
