"""Check of exercise 00. Run it: torchrun --standalone --nproc-per-node=3 CHECK.py"""

import operator
from collections import Counter
from collections.abc import Iterable
from types import ModuleType

import torch
import torch.distributed as dist

from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

ITEMS = (1797, 10, 5, 1)  # with one item, most ranks have none
TOLERANCE = 1e-12  # float64


class Items:
    """``count`` items, whose values grow, and a list of those that this rank has read."""

    def __init__(self, count: int, device: torch.device) -> None:
        self.values = torch.arange(1, count + 1, dtype=torch.float64, device=device) ** 2
        self.read_here: list[int] = []

    def read(self, numbers: Iterable[int]) -> torch.Tensor:
        wanted = [operator.index(number) for number in numbers]
        for number in wanted:
            if not 0 <= number < len(self.values):
                raise Wrong(
                    f"of {len(self.values)} items, number {number} was read, but there is no such item"
                )
        self.read_here += wanted
        return self.values[wanted].clone()


def compare_mean(returned: object, items: Items) -> None:
    """Raise ``Wrong`` unless this rank has found the mean of all items."""
    count = len(items.values)
    if not isinstance(returned, (torch.Tensor, float)) or torch.as_tensor(returned).numel() != 1:
        raise Wrong(
            f"mean_of_all returned a {type(returned).__name__}, expected a tensor that holds one number"
        )
    mean = float(returned)
    expected = items.values.mean().item()
    if not abs(mean / expected - 1) <= TOLERANCE:
        hint = ""
        if items.read_here and mean == items.values[items.read_here].mean().item():
            hint = ": that is the mean of this rank's own share"
        raise Wrong(f"the mean of {count} items is {expected:.1f}, but this rank found {mean:.1f}{hint}")


def compare_shares(shares: list[list[int]], count: int) -> None:
    """Raise ``Wrong`` unless the ranks have read each of ``count`` items once, and evenly."""
    readers = Counter(number for share in shares for number in share)
    twice = [number for number in readers if readers[number] > 1]
    if twice:
        raise Wrong(f"of {count} items, number {min(twice)} was read {readers[min(twice)]} times")
    if len(readers) < count:
        raise Wrong(f"of {count} items, {count - len(readers)} were read by nobody")
    sizes = [len(share) for share in shares]
    if max(sizes) - min(sizes) > 1:
        raise Wrong(f"of {count} items, the ranks read {sizes}: no rank should read two more than another")


def verify(answer: ModuleType, group: Group) -> str:
    sizes = []
    for count in ITEMS:
        items = Items(count, group.device)
        returned = answer.mean_of_all(items.read, count)
        compare_mean(returned, items)
        shares: list[list[int]] = [[]] * group.world_size
        dist.all_gather_object(shares, items.read_here)
        compare_shares(shares, count)
        sizes.append([len(share) for share in shares])
    return f"{ITEMS[0]} items in shares of {sizes[0]}, and one mean on every rank. Well done."


if __name__ == "__main__":
    check_exercise("00_shares", verify, ranks=3)
