"""Memory against the length of the sequence: full attention, a flash kernel, and that kernel on a ring.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_20_memory.py
Written by:  notebooks/20_context_parallel.ipynb (edit it there)
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from lab_20_ring import part_of, ring_attention
from lab_20_ways import BlockAttention

from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.gpt import causal_attention
from shared.training.storages import StorageRecorder


@dataclass(frozen=True)
class Config:
    chunk: int = 64  # positions; first the sequence has 2N of them, then twice as many
    head_width: int = 16
    quadratic: float = 3.5  # at least: times the memory for twice the length
    linear: float = 2.1  # at most


def peak(attend: Callable, qkv: list[torch.Tensor]) -> int:
    """Bytes at the peak of a forward and backward."""
    leaves = [tensor.clone().requires_grad_() for tensor in qkv]
    gradient = torch.ones_like(leaves[0])
    with StorageRecorder([*leaves, gradient]) as memory:
        attend(*leaves).backward(gradient)
    return memory.peak


def in_one_block(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The ring's kernel in one process: one block, on the diagonal."""
    return BlockAttention.apply(q, torch.stack([k, v]), [0], [0])


def measure(length: int, group: Group, cfg: Config) -> dict[str, int]:
    """{kind of attention: bytes at the peak}, in float32. Rank 0 alone computes what needs no other rank."""
    qkv = list(torch.randn(3, 1, 1, length, cfg.head_width, device=group.device))
    parts = [part_of(tensor, -2) for tensor in qkv]
    peaks = {}
    if group.rank == 0:
        peaks["full"] = peak(causal_attention, qkv)
        peaks["flash"] = peak(in_one_block, qkv)
    peaks["ring"] = peak(ring_attention, parts)
    return peaks


def main(cfg: Config) -> None:
    with process_group(timeout_s=120, smallest=2) as group:
        n = group.world_size
        lengths = [2 * n * cfg.chunk, 4 * n * cfg.chunk]
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
    for kind in ("flash", "ring"):
        if growth[kind] > cfg.linear:
            raise CourseError(f"{kind}: {growth[kind]:.2f} times the memory for twice the length")
    share = after["ring"] / after["flash"]
    print_on_rank_0(f"a rank of {n} holds {share:.2f} of what the kernel on one process holds")
    if not 1 / n < share < 2.5 / n:
        raise CourseError(f"a rank holds {share:.2f} of the memory of one process, expected 1/{n} to 2.5/{n}")


if __name__ == "__main__":
    run(main, Config())
