"""Check of exercise 00. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py"""

from types import ModuleType

import torch.distributed as dist

from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

ITEMS = (1797, 10, 3, 0)


def verify(answer: ModuleType, group: Group) -> str:
    for items in ITEMS:
        mine = answer.share_of(group.rank, group.world_size, items)
        if not isinstance(mine, list) or not all(type(index) is int for index in mine):
            raise Wrong(f"share_of returned {type(mine).__name__}, expected a list of whole numbers")
        shares: list[list[int]] = [None] * group.world_size
        dist.all_gather_object(shares, mine)
        taken = sorted(index for share in shares for index in share)
        if outside := [index for index in taken if not 0 <= index < items]:
            raise Wrong(f"of {items} items, number {outside[0]} was taken, but there is no such item")
        if missing := sorted(set(range(items)) - set(taken)):
            raise Wrong(f"of {items} items, {len(missing)} are taken by nobody, the first is {missing[0]}")
        if len(taken) > items:
            twice = next(a for a, b in zip(taken, taken[1:], strict=False) if a == b)
            raise Wrong(f"of {items} items, number {twice} is taken more than once")
        sizes = [len(share) for share in shares]
        if max(sizes) - min(sizes) > 1:
            raise Wrong(f"of {items} items, the ranks take {sizes}: nobody should have two more than another")
        if items == ITEMS[0]:
            praise = f"{items} images in shares of {sizes}, each image exactly once"
    return f"{praise}. Well done."


if __name__ == "__main__":
    check_exercise("00_shares", verify)
