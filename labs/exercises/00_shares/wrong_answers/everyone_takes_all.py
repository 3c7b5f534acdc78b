# rejected: of 1797 items with world size 3, number 0 is taken more than once
"""Every rank does the whole work."""


def share_of(rank: int, world_size: int, items: int) -> list[int]:
    return list(range(items))
