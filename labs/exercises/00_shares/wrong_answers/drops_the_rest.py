# rejected: of 10 items, 1 are taken by nobody, the first is 9
"""Equal blocks, and nobody takes what is left over."""


def share_of(rank: int, world_size: int, items: int) -> list[int]:
    size = items // world_size
    return list(range(rank * size, (rank + 1) * size))
