# rejected: share_of returned a range, expected a list
"""The right numbers, but not as a list."""


def share_of(rank: int, world_size: int, items: int) -> range:
    return range(rank, items, world_size)
