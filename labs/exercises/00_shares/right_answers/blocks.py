# accepted: blocks of neighbours, the last ranks take one more, in falling order
"""Blocks whose limits are rounded down: rank r takes items * r // n up to items * (r + 1) // n."""


def share_of(rank: int, world_size: int, items: int) -> list[int]:
    first = items * rank // world_size
    last = items * (rank + 1) // world_size
    return sorted(range(first, last), reverse=True)
