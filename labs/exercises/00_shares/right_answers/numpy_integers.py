# accepted: the numbers are numpy's integers, not Python's
"""The same shares as those of the solution, counted by numpy."""

import numpy as np


def share_of(rank: int, world_size: int, items: int) -> list[int]:
    return list(np.arange(rank, items, world_size))
