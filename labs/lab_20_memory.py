"""Memory against the length of the sequence: full attention, blocks, and blocks on a ring.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_20_memory.py
Written by:  notebooks/20_context_parallel.ipynb
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from lab_20_ring import part_of, ring_attention
from lab_20_ways import BlockAttention

from shared.comm.broadcast import broadcast_from_rank_0
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.gpt import causal_attention
from shared.training.parity import assert_equal
from shared.training.storages import StorageRecorder


@dataclass(frozen=True)
class Config:
    tile: int = 64  # positions; scores of a tile by a tile exist at one time
    doublings: int = 1
    head_width: int = 16
    quadratic: float = 3.5  # at least: times the memory for twice the length
    linear: float = 2.1  # at most
    tolerance: float = 1e-12


def peak(attend: Callable, qkv: list[torch.Tensor]) -> int:
    """Bytes at the peak of a forward and backward."""
    leaves = [tensor.clone().requires_grad_() for tensor in qkv]
    gradient = torch.ones_like(leaves[0])
    with StorageRecorder([*leaves, gradient]) as memory:
        attend(*leaves).backward(gradient)
    return memory.peak


def by_blocks(tiles: int) -> Callable:
    """Attention on one process with the online softmax, tile by tile."""
    chunks = list(range(tiles))

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return BlockAttention.apply(q, torch.stack([k, v]), chunks, chunks)

    return attend


def on_a_ring(tiles: int) -> Callable:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return ring_attention(q, k, v, tiles=tiles)

    return attend


def measure(length: int, group: Group, cfg: Config) -> dict[str, int]:
    """{kind of attention: bytes at the peak}. Rank 0 alone computes what needs no other rank."""
    n = group.world_size
    qkv = list(torch.randn(3, 1, 1, length, cfg.head_width, dtype=torch.float64, device=group.device))
    parts = [part_of(tensor, -2) for tensor in qkv]
    peaks = {}
    if group.rank == 0:
        peaks["full"] = peak(causal_attention, qkv)
        peaks["blocks"] = peak(by_blocks(length // cfg.tile), qkv)
    peaks["ring"] = peak(on_a_ring(length // (2 * n) // cfg.tile), parts)
    return peaks


def check_tiles(group: Group, cfg: Config) -> None:
    """However many tiles a chunk is cut into: the output and the gradients are those of full attention."""
    length = 2 * group.world_size * 8
    sequence = torch.randn(4, 1, 1, length, cfg.head_width, dtype=torch.float64, device=group.device)
    broadcast_from_rank_0([sequence])
    *qkv, gradient = sequence
    alone = [tensor.clone().requires_grad_() for tensor in qkv]
    causal_attention(*alone).backward(gradient)
    for tiles in (1, 2, 8):
        parts = [part_of(tensor, -2).requires_grad_() for tensor in qkv]
        on_a_ring(tiles)(*parts).backward(part_of(gradient, -2))
        for name, ours, one in zip("qkv", parts, alone, strict=True):
            what = f"{tiles} tiles: gradient of {name}"
            assert_equal(what, ours.grad, part_of(one.grad, -2), cfg.tolerance)


def main(cfg: Config) -> None:
    with process_group(timeout_s=120, smallest=2) as group:
        n = group.world_size
        check_tiles(group, cfg)
        lengths = [2 * n * cfg.tile * 2**power for power in range(cfg.doublings + 1)]
        rows = {length: measure(length, group, cfg) for length in lengths}
        if group.rank == 0:
            check(rows, n, cfg)
        record_results("lab_20_memory", {str(length): row for length, row in rows.items()})


def check(rows: dict[int, dict[str, int]], n: int, cfg: Config) -> None:
    """Full attention grows with the square of the length, the others with the length.

    A rank holds more than 1/N: keys that arrive beside those that it computes with, and their gradients.
    """
    for length, row in rows.items():
        told = ", ".join(f"{kind} {size / 1e6:.2f} MB" for kind, size in row.items())
        print_on_rank_0(f"{length:,} positions: {told}")
    *_, before, after = rows.values()
    growth = {kind: after[kind] / before[kind] for kind in after}
    for kind, times in growth.items():
        print_on_rank_0(f"twice as long, {kind}: {times:.1f} times the memory")
    if growth["full"] < cfg.quadratic:
        raise CourseError(f"full attention: {growth['full']:.2f} times the memory for twice the length")
    for kind in ("blocks", "ring"):
        if growth[kind] > cfg.linear:
            raise CourseError(f"{kind}: {growth[kind]:.2f} times the memory for twice the length")
    share = after["ring"] / after["blocks"]
    print_on_rank_0(f"a rank of {n} holds {share:.2f} of what blocks on one process hold")
    if not 1 / n < share < 2.5 / n:
        raise CourseError(f"a rank holds {share:.2f} of the memory of one process, expected 1/{n} to 2.5/{n}")


if __name__ == "__main__":
    run(main, Config())
