"""Answers to exercise 00."""

from tests.planted import Right, Wrong, solved

MEAN_OF_ALL = solved("00_shares", "mean_of_all")

ANSWERS = [
    Wrong(
        what="The mean of the ranks' means: right only if all shares are equally large.",
        old=("total = mine.sum()", "total / items"),
        new=("total = mine.mean()", "total / world_size"),
        told="the mean of 10 items is 38.5, but this rank found",
    ),
    Wrong(
        what="Nobody adds up what the ranks have found.",
        old=("    dist.all_reduce(total)\n", "total / items"),
        new=("", "total / len(mine)"),
        told="that is the mean of this rank's own share",
    ),
    Wrong(
        what="Every rank reads all items: the mean is right, and nothing is shared.",
        old=("[rank::world_size]", "    dist.all_reduce(total)\n"),
        new=("", ""),
        told="of 1797 items, number 0 was read 3 times",
    ),
    Wrong(
        what="Rank 0 does all the work and tells the others.",
        old=MEAN_OF_ALL,
        new="""
        mine = read(range(items) if dist.get_rank() == 0 else [])
        total = mine.sum()
        dist.broadcast(total, src=0)
        return total / items
        """,
        told="of 1797 items, the ranks read [1797, 0, 0]: no rank should read two more than another",
    ),
    Wrong(
        what="Items are numbered from 1 here.",
        old="range(items)",
        new="range(1, items + 1)",
        told="of 1797 items, number 1797 was read, but there is no such item",
    ),
    Wrong(
        what="all_reduce returns nothing; it changes its tensor.",
        old=("    dist.all_reduce(total)\n", "total / items"),
        new=("", "dist.all_reduce(total / items)"),
        told="mean_of_all returned a NoneType, expected a tensor that holds one number",
    ),
    Wrong(
        what="Only rank 0 calls all_reduce.",
        old="    dist.all_reduce(total)\n",
        new="    if rank == 0:\n        dist.all_reduce(total)\n",
        told="the mean of 1797 items is 1077301.7, but this rank found",
    ),
    Wrong(
        what="Blocks of neighbours, of a size that is rounded up: the last rank gets too few.",
        old="range(items)[rank::world_size]",
        new="range(items)[rank * -(-items // world_size) : (rank + 1) * -(-items // world_size)]",
        told="of 10 items, the ranks read [4, 4, 2]",
    ),
    Wrong(
        what="Blocks of neighbours, of a size that is rounded down: the last rank takes the rest.",
        old="""
        mine = read(range(items)[rank::world_size])
        """,
        new="""
        size = items // world_size
        mine = read(range(rank * size, items if rank == world_size - 1 else (rank + 1) * size))
        """,
        told="of 5 items, the ranks read [1, 1, 3]",
    ),
    Right(
        what="Blocks of neighbours; sum and count of each rank travel in one tensor.",
        old=MEAN_OF_ALL,
        new="""
        rank = dist.get_rank()
        size, more = divmod(items, dist.get_world_size())
        first = rank * size + min(rank, more)
        mine = read(torch.arange(first, first + size + (rank < more)))
        sum_and_count = torch.stack([mine.sum(), torch.ones_like(mine).sum()])
        dist.all_reduce(sum_and_count)
        return (sum_and_count[0] / sum_and_count[1]).item()
        """,
    ),
]
