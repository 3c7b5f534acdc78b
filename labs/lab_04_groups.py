"""Rules of the game: groups of some ranks, calls that return at once, what a call leaves undefined.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_04_groups.py
Written by:  notebooks/04_collectives.ipynb
"""

import os
import time
import warnings

import torch
import torch.distributed as dist

from shared.comm.p2p import sendrecv
from shared.comm.record import record
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run


def two_groups(group: Group) -> None:
    """Even and odd ranks add up among themselves, at the same time."""
    everyone = list(range(group.world_size))
    evens, odds = everyone[::2], everyone[1::2]
    # Every rank makes every group, in the same order, also those that it does not belong to.
    even_group, odd_group = dist.new_group(evens), dist.new_group(odds)
    mine, members = (even_group, evens) if group.rank in evens else (odd_group, odds)
    x = torch.tensor([10 * (group.rank + 1)], device=group.device)
    dist.all_reduce(x, group=mine)
    assert x.item() == sum(10 * (r + 1) for r in members)
    assert dist.get_process_group_ranks(mine) == members
    assert dist.get_rank(mine) == members.index(group.rank)
    print_in_rank_order(f"rank {dist.get_rank(mine)} of the group {members}, whose sum is {x.item()}")

    # `src` is a global rank, `group_src` a rank within the group: here both mean the first member.
    for source in ({"src": members[0]}, {"group_src": 0}):
        x = torch.tensor([group.rank], device=group.device)
        dist.broadcast(x, group=mine, **source)
        assert x.item() == members[0], (source, x)


def order_of_members(group: Group) -> None:
    """A group's ranks are counted in ascending order, whatever the order of the list."""
    last = group.world_size - 1
    pg = dist.new_group([last, 0])
    if group.rank in (0, last):
        assert dist.get_process_group_ranks(pg) == [0, last]
        assert dist.get_rank(pg) == (0 if group.rank == 0 else 1)
    print_on_rank_0(f"new_group([{last}, 0]): rank 0 stays the first")


def outsiders(group: Group) -> None:
    """A rank that calls a collective of a foreign group gets a warning, and keeps its tensor."""
    only_rank_0 = dist.new_group([0])
    x = torch.tensor([7], device=group.device)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        returned = dist.all_reduce(x, group=only_rank_0, async_op=True)
    if group.rank == 0:
        returned.wait()
        assert not heard
    else:
        assert returned is None
        assert "does not belong to the given group" in str(heard[0].message), heard
    assert x.item() == 7
    print_on_rank_0("a rank outside of the group: its call returns None, with a warning, and changes nothing")


def async_op(group: Group, store: dist.Store) -> None:
    """With ``async_op=True`` a call returns before the others have come; ``wait`` returns after."""
    n, x = group.world_size, torch.full((4,), group.rank + 1, device=group.device)
    if group.rank == 0:  # comes when all others have had their call back
        while store.add("called", 0) < n - 1:
            time.sleep(0.01)
    work = dist.all_reduce(x, async_op=True)
    early = not work.is_completed()
    if group.rank > 0:
        assert early, "the sum was complete without rank 0"
        store.add("called", 1)
    busy = sum(range(1000))  # anything that does not touch x
    work.wait()
    assert x.tolist() == [n * (n + 1) // 2] * 4
    assert busy == 499_500
    print_on_rank_0("async_op: the call returns, other work goes on, after work.wait() the sum is there")

    total, highest = (torch.full((4,), group.rank + 1, device=group.device) for _ in range(2))
    first = dist.all_reduce(total, async_op=True)
    second = dist.all_reduce(highest, op=dist.ReduceOp.MAX, async_op=True)  # two under way at once
    second.wait()
    first.wait()
    assert total.tolist() == [n * (n + 1) // 2] * 4
    assert highest.tolist() == [n] * 4
    print_on_rank_0("two under way at once, awaited in another order: sum and maximum are right")


def leftovers(group: Group) -> dict:
    """After a reduce only the destination has a result. Its copy is what the others may go on with."""
    x = torch.arange(4, device=group.device) + 10 * (group.rank + 1)
    kept = x.clone()
    dist.reduce(x, dst=0)
    total = sum(torch.arange(4) + 10 * (r + 1) for r in range(group.world_size))
    if group.rank == 0:
        assert torch.equal(x.cpu(), total)
    print_on_rank_0("reduce: rank 0 has the sum; nothing is promised about the tensors of the others")
    return {"before": kept.tolist(), "after": x.tolist()}


def barrier(group: Group) -> torch.Tensor:
    """A barrier by hand: return a flag for each rank that is known to have come.

    Dissemination: in rounds of distance 1, 2, 4, ... each tells its right and hears from its left.
    Source: Hensgen, Finkel and Manber, Int. J. Parallel Program. 17(1), 1988, doi 10.1007/BF01379320.
    """
    rank, n, distance = group.rank, group.world_size, 1
    heard = torch.zeros(n, device=group.device)
    heard[rank] = 1
    while distance < n:
        incoming = torch.empty_like(heard)
        sendrecv(heard, (rank + distance) % n, incoming, (rank - distance) % n)
        heard = torch.maximum(heard, incoming)
        distance *= 2
    return heard


def main() -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        two_groups(group)
        order_of_members(group)
        outsiders(group)
        async_op(group, dist.PrefixStore("lab 04", store))
        left = leftovers(group)
        with record() as log:
            assert barrier(group).all()
        rounds = (group.world_size - 1).bit_length()  # log2, rounded up
        assert log.count("send") == rounds, (log.count("send"), rounds)
        print_on_rank_0(f"a barrier by hand: {rounds} message(s) from each rank, and each has heard of all")
        record_results("lab_04_groups", left)


if __name__ == "__main__":
    run(main)
