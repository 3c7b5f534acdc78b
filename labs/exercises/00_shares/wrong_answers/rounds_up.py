# rejected: of 10 items, the ranks take [4, 4, 2]
"""Blocks rounded up: the last rank gets too little."""


def share_of(rank: int, world_size: int, items: int) -> list[int]:
    size = -(-items // world_size)
    return list(range(rank * size, min((rank + 1) * size, items)))
