# rejected: of 1797 items with world size 2, number 1796 is taken by no rank (1 such in all)
"""Equal blocks, and nobody takes what is left over."""


def share_of(rank: int, world_size: int, items: int) -> list[int]:
    size = items // world_size
    return list(range(rank * size, (rank + 1) * size))
