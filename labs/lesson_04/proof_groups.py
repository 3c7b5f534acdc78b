"""Groups of some ranks, calls that return at once, averages, pieces of different sizes.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_04/proof_groups.py
"""

import os
import time

import torch
import torch.distributed as dist

from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.run import run

PATIENCE_S = 5.0


def two_groups(group: Group) -> None:
    """Even and odd ranks add up among themselves, at the same time."""
    everyone = list(range(group.world_size))
    evens, odds = everyone[::2], everyone[1::2]
    # Every rank makes every group, in the same order, also those that it does not belong to.
    even_group, odd_group = dist.new_group(evens), dist.new_group(odds)
    mine, members = (even_group, evens) if group.rank in evens else (odd_group, odds)
    x = torch.tensor([10 * (group.rank + 1)], device=group.device)
    dist.all_reduce(x, group=mine)
    expected = sum(10 * (rank + 1) for rank in members)
    assert x.item() == expected, f"the sum over ranks {members} is {expected}, not {x.item()}"
    assert dist.get_process_group_ranks(mine) == members
    assert dist.get_rank(mine) == members.index(group.rank)
    print_in_rank_order(f"rank {dist.get_rank(mine)} of the group {members}, whose sum is {x.item()}")

    # `src` is a global rank, `group_src` a rank within the group: here both mean the first member.
    for source in ({"src": members[0]}, {"group_src": 0}):
        x = torch.tensor([group.rank], device=group.device)
        dist.broadcast(x, group=mine, **source)
        assert x.item() == members[0], f"{source} means rank {members[0]}, not {x.item()}"


def async_op(group: Group, store: dist.Store) -> None:
    """With ``async_op=True`` a call returns before the others have come; ``wait`` returns after.

    Rank 0 stays away until all others have said, by the store, that their calls have returned.
    """
    n = group.world_size
    x = torch.full((4,), group.rank + 1, device=group.device)
    if group.rank == 0:
        give_up = time.monotonic() + PATIENCE_S
        while store.add("returned", 0) < n - 1:
            if time.monotonic() > give_up:
                raise CourseError("the calls of the other ranks wait for rank 0 instead of returning")
            time.sleep(0.01)
    work = dist.all_reduce(x, async_op=True)
    if group.rank > 0:
        store.add("returned", 1)  # other work, while the all_reduce is under way
    work.wait()
    assert x.tolist() == [n * (n + 1) // 2] * 4, f"after wait the sum is {x.tolist()}"
    print_on_rank_0(
        "async_op: the calls return while rank 0 is still away; after work.wait() the sum is there"
    )

    total = torch.full((4,), group.rank + 1, device=group.device)
    highest = total.clone()
    first = dist.all_reduce(total, async_op=True)
    second = dist.all_reduce(highest, op=dist.ReduceOp.MAX, async_op=True)  # two under way at once
    second.wait()
    first.wait()
    assert total.tolist() == [n * (n + 1) // 2] * 4
    assert highest.tolist() == [n] * 4
    print_on_rank_0("two under way at once, awaited in a different order: sum and maximum are right")


def averages(group: Group) -> None:
    """ReduceOp.AVG divides the sum by the number of ranks. On gloo it does so for floats only."""
    n = group.world_size
    x = torch.full((4,), float(group.rank), device=group.device)
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    assert x.tolist() == [(n - 1) / 2] * 4, f"the mean of 0 to {n - 1} is {(n - 1) / 2}, not {x.tolist()}"
    if group.backend == "gloo":
        whole = torch.full((4,), group.rank)
        try:
            dist.all_reduce(whole, op=dist.ReduceOp.AVG)
        except RuntimeError as error:
            assert "can't be cast to the desired output type Long" in str(error), error
        else:
            raise CourseError("gloo averages whole numbers now: say so in the lesson")
    print_on_rank_0(f"ReduceOp.AVG: the mean of 0 to {n - 1} is {(n - 1) / 2}")


def uneven_all_to_all(group: Group) -> None:
    """Each rank sends another number of elements to each: first tell how many, then send them.

    Rank r has (2 r + j) % 3 elements for rank j, all of them r.
    """
    rank, n = group.rank, group.world_size
    to_send = [(2 * rank + other) % 3 for other in range(n)]
    counts = torch.empty(n, dtype=torch.int64, device=group.device)
    dist.all_to_all_single(counts, torch.tensor(to_send, device=group.device))  # an even one: one count each
    to_receive = counts.tolist()
    outgoing = torch.full((sum(to_send),), rank, device=group.device)
    incoming = torch.empty(sum(to_receive), dtype=outgoing.dtype, device=group.device)
    dist.all_to_all_single(incoming, outgoing, output_split_sizes=to_receive, input_split_sizes=to_send)
    expected = [other for other in range(n) for _ in range((2 * other + rank) % 3)]
    assert incoming.tolist() == expected, f"{incoming.tolist()} arrived, expected is {expected}"
    print_in_rank_order(f"uneven all_to_all: I sent {to_send} elements and received {incoming.tolist()}")


def main() -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        two_groups(group)
        async_op(group, dist.PrefixStore("lab 04", store))
        averages(group)
        uneven_all_to_all(group)


if __name__ == "__main__":
    run(main)
