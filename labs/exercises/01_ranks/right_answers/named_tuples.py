# accepted: named tuples of numpy's integers
"""Counts with numpy and names the fields."""

from typing import NamedTuple

import numpy as np


class Place(NamedTuple):
    rank: int
    local_rank: int
    group_rank: int
    world_size: int


def all_ranks(agents: list[tuple[str, int, int]]) -> list[Place]:
    sizes = np.array([size for _, _, size in sorted(agents)])
    offsets = np.cumsum(sizes) - sizes
    places = []
    for node, size in enumerate(sizes):
        for local in range(size):
            places.append(Place(offsets[node] + local, local, node, sizes.sum()))
    return places
