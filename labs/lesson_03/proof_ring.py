"""A tensor is handed round: each rank adds its own and passes the sum on. Times of all calls are recorded.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_03/proof_ring.py
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.parity import assert_equal


@dataclass(frozen=True)
class Config:
    numel: int = 1_000_000  # 8 MB, so that a message takes long enough to be drawn
    work_s: float = 0.03  # a stand-in for what a rank computes before it passes the sum on


def timed(events: list[dict], what: str, peer: int | None, call: Callable, *args) -> None:
    """Call ``call(*args)`` and note when it began and ended, in seconds of ``time.monotonic``.

    On one machine all processes read the same monotonic clock, so their notes can be compared.
    """
    begin = time.monotonic()
    call(*args)
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # a GPU works behind the call's back
    events.append({"what": what, "peer": peer, "begin": begin, "end": time.monotonic()})


def values_of(rank: int, cfg: Config) -> torch.Tensor:
    """What a rank adds: float64 (numel,), different on each rank and known to all."""
    return torch.randn(cfg.numel, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


def reference(n: int, cfg: Config) -> torch.Tensor:
    """The sum over ranks 0 .. n - 1, by one process and in the ring's order."""
    total = values_of(0, cfg)
    for rank in range(1, n):
        total += values_of(rank, cfg)
    return total


def hand_round(mine: torch.Tensor, events: list[dict], cfg: Config) -> torch.Tensor:
    """Pass a sum 0, 1, ..., n - 1, 0; return what this rank passed on, and on rank 0 the total."""
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    held = mine.clone()
    if rank > 0:
        timed(events, "recv", left, dist.recv, held, left)
        held += mine
    timed(events, "work", None, time.sleep, cfg.work_s)
    timed(events, "send", right, dist.send, held, right)
    if rank == 0:
        timed(events, "recv", left, dist.recv, held, left)
    return held


def main(cfg: Config) -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        events: list[dict] = []
        mine = values_of(group.rank, cfg).to(group.device)
        with record() as log:
            dist.barrier()  # inside: the first call that is recorded is slow
            held = hand_round(mine, events, cfg).cpu()
        if log.counts() != {"barrier": 1, "send": 1, "recv": 1} or log.bytes("send") != 8 * cfg.numel:
            raise CourseError(
                f"one message of {8 * cfg.numel:,} bytes should have gone out here: {log.calls}"
            )
        last = group.rank if group.rank > 0 else group.world_size - 1
        assert_equal(f"sum of ranks 0 to {last}", held, reference(last + 1, cfg), 0.0)
        print_in_rank_order(f"I held the sum of ranks 0 to {last}, equal to one process")
        print_on_rank_0(f"{group.world_size} messages of {8 * cfg.numel:,} bytes, one after another")
        record_results("03_ring", {"events": events, "backend": group.backend})


if __name__ == "__main__":
    run(main, Config())
