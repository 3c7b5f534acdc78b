# rejected: share_of returned a list whose entry 0 is 0.0, a float: expected whole numbers
"""Blocks, counted with a division that gives floats."""


def share_of(rank: int, world_size: int, items: int) -> list[int]:
    first = (items - rank + world_size - 1) / world_size
    return [float(rank + step * world_size) for step in range(int(first))]
