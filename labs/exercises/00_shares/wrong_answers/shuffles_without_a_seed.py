# rejected: is taken by no rank (
"""Each rank shuffles by itself, so the shares of two ranks overlap."""

import random


def share_of(rank: int, world_size: int, items: int) -> list[int]:
    indices = list(range(items))
    random.SystemRandom().shuffle(indices)
    return indices[rank::world_size]
