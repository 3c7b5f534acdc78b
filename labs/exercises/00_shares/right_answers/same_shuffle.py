# accepted: shuffled, with one seed on all ranks
"""All ranks shuffle alike, as DistributedSampler does, and then take every n-th item."""

import random


def share_of(rank: int, world_size: int, items: int) -> list[int]:
    indices = list(range(items))
    random.Random(0).shuffle(indices)
    return indices[rank::world_size]
