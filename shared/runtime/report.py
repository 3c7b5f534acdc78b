"""Output of several ranks in rank order. Taught in lesson 00."""

from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from tqdm import tqdm


def print_in_rank_order(text: str) -> None:
    """Print ``[rank r] text`` of every rank, in rank order. Collective: all ranks must call it.

    The texts travel to rank 0, which prints them all: prints of separate processes have no order.
    """
    for rank, line in enumerate(gather_on_rank_0(text)):
        print(f"[rank {rank}] {line}")


def gather_on_rank_0(value: Any) -> list[Any]:
    """What every rank passed, in rank order; on other ranks than 0 nothing. Collective."""
    if dist.get_rank() != 0:
        dist.gather_object(value)
        return []
    values: list[Any] = [None] * dist.get_world_size()
    dist.gather_object(value, values)
    return values


def print_on_rank_0(text: str) -> None:
    """Print on rank 0 only. Not a collective."""
    if dist.get_rank() == 0:
        print(text)


def progress(steps: Iterable, description: str) -> tqdm:
    """A progress bar on rank 0, nothing on the others. It leaves no line behind."""
    return tqdm(
        steps,
        desc=description,
        disable=dist.get_rank() != 0,
        leave=False,
        bar_format="{desc}: {bar} {n_fmt}/{total_fmt}",
    )
