"""Answers to exercise 00."""

from tests.planted import Right, Wrong, solved

SHARE_OF = solved("00_shares", "share_of")

ANSWERS = [
    Wrong(
        what="Items are numbered from 1 here.",
        old="rank, items",
        new="rank + 1, items + 1",
        told="of 1797 items with world size 3, number 1797 was taken, but there is no such item",
    ),
    Wrong(
        what="Equal blocks, and nobody takes what is left over.",
        old=SHARE_OF,
        new="""
        size = items // world_size
        return list(range(rank * size, (rank + 1) * size))
        """,
        told="of 1797 items with world size 2, number 1796 is taken by no rank (1 such in all)",
    ),
    Wrong(
        what="Every rank does the whole work.",
        old="rank, items, world_size",
        new="items",
        told="of 1797 items with world size 3, number 0 is taken more than once",
    ),
    Wrong(
        what="Counts with a division that gives floats.",
        old=SHARE_OF,
        new="""
        first = (items - rank + world_size - 1) / world_size
        return [float(rank + step * world_size) for step in range(int(first))]
        """,
        told="share_of returned a list whose entry 0 is 0.0, a float: expected whole numbers",
    ),
    Wrong(
        what="The right numbers, but not as a list.",
        old=SHARE_OF,
        new="return range(rank, items, world_size)",
        told="share_of returned a range, expected a list",
    ),
    Wrong(
        what="Blocks rounded up: the last rank gets too little.",
        old=SHARE_OF,
        new="""
        size = -(-items // world_size)
        return list(range(rank * size, min((rank + 1) * size, items)))
        """,
        told="of 1797 items with world size 5, the ranks take [360, 360, 360, 360, 357]",
    ),
    Right(
        what="Shuffled, with one seed on all ranks, as DistributedSampler does.",
        old=SHARE_OF,
        new="""
        indices = list(range(items))
        random.Random(0).shuffle(indices)
        return indices[rank::world_size]
        """,
        below="import random",
    ),
]
