# rejected: expected a 0-dim tensor of float64
"""Returns float32."""

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist

Sizes = dict[str, int]  # {dimension: its size}, the outermost first, as init_device_mesh takes them


def position(rank: int, sizes: Sizes) -> dict[str, int]:
    """Return {dimension: index of ``rank`` along it}, in the order of ``sizes``."""
    found = dict.fromkeys(sizes, 0)
    for name in reversed(sizes):
        found[name] = rank % sizes[name]
        rank //= sizes[name]
    return found


def members(rank: int, sizes: Sizes, names: Iterable[str]) -> list[int]:
    """Return the ranks that differ from ``rank`` along the dimensions ``names`` only, ``rank`` among them.

    They are in ascending order. ``names`` may be empty, or hold several dimensions.
    """
    names = set(names)
    own = position(rank, sizes)
    found = []
    for other in range(math.prod(sizes.values())):
        its = position(other, sizes)
        if all(its[name] == own[name] for name in sizes if name not in names):
            found.append(other)
    return found


def batch_part(rank: int, sizes: Sizes, data: Iterable[str]) -> tuple[int, int]:
    """Return (index, parts): this rank reads part number ``index`` of the batch, which has so many parts.

    The dimensions ``data``, such as ("replicate", "shard"), divide the batch. Ranks that differ along other
    dimensions only read the same part. Parts count up with the rank.
    """
    group = members(rank, sizes, data)
    return group.index(rank), len(group)


def global_norm(held: list[tuple[torch.Tensor, set[str]]], sizes: Sizes) -> torch.Tensor:
    """Return the norm of the whole gradient, the same 0-dim tensor of float64 on all ranks.

    Args:
        held: what this rank holds of the gradient of each parameter, and the dimensions along which that
            gradient is divided. Along each other dimension the ranks hold copies. A part may be empty. All
            ranks have the same parameters in the same order.
        sizes: the mesh; its ranks are all ranks.

    One all-reduce of one number is enough. Leave the gradients as they are.
    """
    total = torch.zeros((), dtype=torch.float64, device=held[0][0].device)
    for part, divided in held:
        copies = math.prod(size for name, size in sizes.items() if name not in divided)
        total += part.double().square().sum() / copies
    dist.all_reduce(total)
    return total.sqrt().float()
