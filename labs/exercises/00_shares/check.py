"""Check of exercise 00. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py"""

import operator
from types import ModuleType

import torch.distributed as dist

from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

ITEMS = (1797, 10, 3, 0)
WORLD_SIZES = (1, 2, 3, 5)  # beside that of this run: one process can ask for the share of any rank


def share(answer: ModuleType, rank: int, world_size: int, items: int) -> list[int]:
    """What ``share_of`` returns, as Python's integers. Raises ``Wrong`` if it is no list of integers."""
    returned = answer.share_of(rank, world_size, items)
    if not isinstance(returned, list):
        raise Wrong(f"share_of returned a {type(returned).__name__}, expected a list")
    indices = []
    for place, index in enumerate(returned):
        try:
            if isinstance(index, bool):
                raise TypeError
            indices.append(operator.index(index))  # numpy's integers are as good as Python's
        except TypeError:
            raise Wrong(
                f"share_of returned a list whose entry {place} is {index!r}, a {type(index).__name__}: "
                "expected whole numbers"
            ) from None
    return indices


def compare(shares: list[list[int]], items: int) -> None:
    """Raise ``Wrong`` unless ``shares``, one for each rank, hold each of ``items`` items once and evenly."""
    case = f"of {items} items with world size {len(shares)}"
    taken = sorted(index for indices in shares for index in indices)
    outside = [index for index in taken if not 0 <= index < items]
    if outside:
        raise Wrong(f"{case}, number {outside[0]} was taken, but there is no such item")
    missing = sorted(set(range(items)) - set(taken))
    if missing:
        raise Wrong(f"{case}, number {missing[0]} is taken by no rank ({len(missing)} such in all)")
    for index, after in zip(taken, taken[1:], strict=False):
        if index == after:
            raise Wrong(f"{case}, number {index} is taken more than once")
    sizes = [len(indices) for indices in shares]
    if max(sizes) - min(sizes) > 1:
        raise Wrong(f"{case}, the ranks take {sizes}: no rank should have two more than another")


def verify(answer: ModuleType, group: Group) -> str:
    sizes = {}
    for items in ITEMS:
        mine = share(answer, group.rank, group.world_size, items)
        shares: list[list[int]] = [None] * group.world_size
        dist.all_gather_object(shares, mine)
        compare(shares, items)
        sizes[items] = [len(indices) for indices in shares]
        for world_size in WORLD_SIZES:
            compare([share(answer, rank, world_size, items) for rank in range(world_size)], items)
    return f"{ITEMS[0]} images in shares of {sizes[ITEMS[0]]}, each image exactly once. Well done."


if __name__ == "__main__":
    check_exercise("00_shares", verify)
