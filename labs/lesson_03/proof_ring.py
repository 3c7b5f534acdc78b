"""A tensor is handed round: each rank adds its own and passes the sum on. Each sends one message.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_03/proof_ring.py
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.run import run
from shared.training.parity import assert_equal


@dataclass(frozen=True)
class Config:
    numel: int = 1_000_000  # 8 MB


def values_of(rank: int, cfg: Config) -> torch.Tensor:
    """What a rank adds: float64 (numel,), different on each rank and known to all."""
    return torch.randn(cfg.numel, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


def reference(n: int, cfg: Config) -> torch.Tensor:
    """The sum over ranks 0 .. n - 1, by one process and in the ring's order."""
    total = values_of(0, cfg)
    for rank in range(1, n):
        total += values_of(rank, cfg)
    return total


def hand_round(mine: torch.Tensor) -> torch.Tensor:
    """Pass a sum 0, 1, ..., n - 1, 0; return what this rank passed on, and on rank 0 the total."""
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    held = mine.clone()
    if rank > 0:
        dist.recv(held, left)
        held += mine
    dist.send(held, right)
    if rank == 0:
        dist.recv(held, left)
    return held


def main(cfg: Config) -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        mine = values_of(group.rank, cfg).to(group.device)
        with record() as log:
            held = hand_round(mine).cpu()
        if log.counts() != {"send": 1, "recv": 1} or log.bytes("send") != 8 * cfg.numel:
            raise CourseError(
                f"one message of {8 * cfg.numel:,} bytes should have gone out here: {log.calls}"
            )
        last = group.rank if group.rank > 0 else group.world_size - 1
        assert_equal(f"sum of ranks 0 to {last}", held, reference(last + 1, cfg), 0.0)
        print_in_rank_order(f"I held the sum of ranks 0 to {last}, equal to one process")
        print_on_rank_0(f"{group.world_size} messages of {8 * cfg.numel:,} bytes, one after another")


if __name__ == "__main__":
    run(main, Config())
