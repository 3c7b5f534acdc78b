"""What a call costs, and what batching saves: calls and bytes counted, times measured.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_23_cost.py
Written by:  notebooks/23_rpc.ipynb (edit it there)
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.distributed import rpc

from shared.comm.kernel import wire_bytes
from shared.comm.rpc import rpc_workers
from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.parity import assert_equal


@dataclass(frozen=True)
class Config:
    rows: int = 256  # how many rows of the table we need
    width: int = 16  # numbers in a row, float32
    repeats: int = 3
    settle_s: float = 0.2


TABLE = torch.arange(1000 * 16, dtype=torch.float32).reshape(1000, 16)
COUNTED = {"calls": 0}


def look_up(indices: torch.Tensor) -> torch.Tensor:
    """Rows of the table that lives in the process that runs this: (indices,) to (indices, width)."""
    COUNTED["calls"] += 1
    return TABLE[indices]


def count(settle_s: float) -> tuple[int, int | None]:
    """Calls of look_up and bytes delivered, of this process and so far."""
    time.sleep(settle_s)  # the kernel counts bytes when the other side has confirmed them
    return COUNTED["calls"], wire_bytes()


def one_by_one(there: str, indices: torch.Tensor) -> torch.Tensor:
    return torch.cat([rpc.rpc_sync(there, look_up, args=(index.clone(),)) for index in indices.split(1)])


def as_views(there: str, indices: torch.Tensor) -> torch.Tensor:
    """One by one again, but without clone: each index is a view of all indices."""
    return torch.cat([rpc.rpc_sync(there, look_up, args=(index,)) for index in indices.split(1)])


def all_under_way(there: str, indices: torch.Tensor) -> torch.Tensor:
    calls = [rpc.rpc_async(there, look_up, args=(index.clone(),)) for index in indices.split(1)]
    return torch.cat(torch.futures.wait_all(calls))


def one_batch(there: str, indices: torch.Tensor) -> torch.Tensor:
    return rpc.rpc_sync(there, look_up, args=(indices,))


def measure(way: Callable, there: str, indices: torch.Tensor, cfg: Config) -> dict:
    """Calls, bytes of indices and rows, bytes on the wire in both directions, seconds of the fastest run."""
    way(there, indices)  # the first call opens connections
    calls, theirs = rpc.rpc_sync(there, count, args=(cfg.settle_s,))
    ours = wire_bytes()
    seconds = []
    for _ in range(cfg.repeats):
        start = time.perf_counter()
        rows = way(there, indices)
        seconds.append(time.perf_counter() - start)
    time.sleep(cfg.settle_s)
    mine = wire_bytes()
    calls_now, theirs_now = rpc.rpc_sync(there, count, args=(cfg.settle_s,))
    assert_equal(way.__name__, rows, TABLE[indices], 0.0)
    payload = rows.nbytes + indices.nbytes
    total = None if ours is None else (mine - ours + theirs_now - theirs) / cfg.repeats
    if total is not None and total < payload:
        raise CourseError(
            f"{way.__name__}: {total:,.0f} bytes on the wire hold no {payload:,} bytes of payload"
        )
    return {
        "calls": (calls_now - calls) // cfg.repeats,
        "payload": payload,
        "bytes": total,
        "seconds": min(seconds),
    }


def main(cfg: Config) -> None:
    with process_group(smallest=2, timeout_s=120) as group, rpc_workers(group, tcp_only=True) as workers:
        costs = {}
        if group.rank == 0:
            indices = torch.randperm(len(TABLE))[: cfg.rows].clone()
            for way in (one_by_one, as_views, all_under_way, one_batch):
                name = way.__name__.replace("_", " ")
                costs[name] = measure(way, workers[1], indices, cfg)
                line = (
                    f"{name:13} {costs[name]['calls']:3} calls, {costs[name]['payload']:,} bytes of payload"
                )
                if costs[name]["bytes"] is not None:
                    line += f", on the wire {costs[name]['bytes'] / costs[name]['payload']:.3f} times that"
                print(line)
            for name, cost in costs.items():
                expected = 1 if name == "one batch" else cfg.rows
                if cost["calls"] != expected:
                    raise CourseError(f"{name}: {cost['calls']} calls were counted, expected {expected}")
        record_results("lab_23_cost", costs)


if __name__ == "__main__":
    run(main, Config())
