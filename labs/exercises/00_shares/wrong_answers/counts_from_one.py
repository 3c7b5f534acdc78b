# rejected: of 1797 items with world size 3, number 1797 was taken, but there is no such item
"""Items are numbered from 1 here."""


def share_of(rank: int, world_size: int, items: int) -> list[int]:
    return list(range(rank + 1, items + 1, world_size))
