# rejected: of 1797 items with world size 5, the ranks take [360, 360, 360, 360, 357]
"""Blocks rounded up: the last rank gets too little."""


def share_of(rank: int, world_size: int, items: int) -> list[int]:
    size = -(-items // world_size)
    return list(range(rank * size, min((rank + 1) * size, items)))
