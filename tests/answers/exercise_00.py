"""Answers to exercise 00; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

ANSWERS = [
    wrong(
        "Items are numbered from 1 here.",
        "of 1797 items with world size 3, number 1797 was taken, but there is no such item",
        ("rank, items", "rank + 1, items + 1"),
    ),
    wrong(
        "Equal blocks, and nobody takes what is left over.",
        "of 1797 items with world size 2, number 1796 is taken by no rank (1 such in all)",
        share_of="""
        size = items // world_size
        return list(range(rank * size, (rank + 1) * size))
        """,
    ),
    wrong(
        "Every rank does the whole work.",
        "of 1797 items with world size 3, number 0 is taken more than once",
        ("rank, items, world_size", "items"),
    ),
    wrong(
        "Counts with a division that gives floats.",
        "share_of returned a list whose entry 0 is 0.0, a float: expected whole numbers",
        share_of="""
        first = (items - rank + world_size - 1) / world_size
        return [float(rank + step * world_size) for step in range(int(first))]
        """,
    ),
    wrong(
        "Right when there happen to be three ranks.",
        "of 1797 items with world size 1, number 1 is taken by no rank (1198 such in all)",
        ("items, world_size", "items, 3"),
    ),
    wrong(
        "The right numbers, but not as a list.",
        "share_of returned a range, expected a list",
        share_of="return range(rank, items, world_size)",
    ),
    wrong(
        "Blocks rounded up: the last rank gets too little.",
        "of 1797 items with world size 5, the ranks take [360, 360, 360, 360, 357]",
        share_of="""
        size = -(-items // world_size)
        return list(range(rank * size, min((rank + 1) * size, items)))
        """,
    ),
    wrong(
        "Each rank shuffles by itself, so the shares of two ranks overlap.",
        "is taken by no rank (",
        share_of="""
        indices = list(range(items))
        random.SystemRandom().shuffle(indices)
        return indices[rank::world_size]
        """,
        below="import random",
    ),
    right(
        "Blocks of neighbours, the last ranks take one more, in falling order.",
        share_of="""
        first = items * rank // world_size
        last = items * (rank + 1) // world_size
        return sorted(range(first, last), reverse=True)
        """,
    ),
    right(
        "The numbers are numpy's integers, not Python's.",
        ("range(rank", "np.arange(rank"),
        below="import numpy as np",
    ),
    right(
        "Shuffled, with one seed on all ranks, as DistributedSampler does.",
        share_of="""
        indices = list(range(items))
        random.Random(0).shuffle(indices)
        return indices[rank::world_size]
        """,
        below="import random",
    ),
]
