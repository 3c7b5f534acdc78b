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
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.results import record_results
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


def order_of_members(group: Group) -> None:
    """new_group sorts the ranks that it is given; with ``sort_ranks=False`` the order of the list counts."""
    last = group.world_size - 1
    for options, members in (({}, [0, last]), ({"sort_ranks": False}, [last, 0])):
        pg = dist.new_group([last, 0], **options)
        if group.rank in members:
            x = torch.tensor([group.rank], device=group.device)
            dist.broadcast(x, group=pg, group_src=0)
            found = dist.get_process_group_ranks(pg)
            assert found == members, f"new_group([{last}, 0], {options}) has the members {found}"
            assert dist.get_rank(pg) == members.index(group.rank)
            assert x.item() == members[0], f"its first member is rank {members[0]}, not {x.item()}"
        text = ", ".join([f"[{last}, 0]", *(f"{name}={value}" for name, value in options.items())])
        print_on_rank_0(f"new_group({text}): its first member is rank {members[0]}")


def members_only(group: Group) -> None:
    """With ``use_local_synchronization=True`` nobody but the members calls new_group."""
    everyone = list(range(group.world_size))
    members = everyone[::2] if group.rank % 2 == 0 else everyone[1::2]
    made = dist.distributed_c10d.get_pg_count()
    pg = dist.new_group(members, use_local_synchronization=True)  # each rank makes only the group it is in
    x = torch.ones(1, device=group.device)
    dist.all_reduce(x, group=pg)
    assert x.item() == len(members), f"{len(members)} members add up {x.item():g} ones"
    # torch names groups by counting the calls of a rank. All ranks have made one, so they still agree.
    counts = [None] * group.world_size
    dist.all_gather_object(counts, dist.distributed_c10d.get_pg_count())
    assert counts == [made + 1] * group.world_size, f"the ranks have counted {counts} groups"
    print_on_rank_0("use_local_synchronization: each rank made only its own group")


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
    print_on_rank_0("two under way at once, awaited in another order: sum and maximum are right")


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


def leftovers(group: Group) -> dict:
    """After a reduce only the destination has a result. Its copy is what the others may go on with."""
    x = torch.arange(4, device=group.device) + 10 * (group.rank + 1)
    kept = x.clone()
    dist.reduce(x, dst=0)
    total = sum(torch.arange(4) + 10 * (rank + 1) for rank in range(group.world_size))
    if group.rank == 0:
        assert torch.equal(x.cpu(), total), f"rank 0 holds {x.tolist()}, the sum is {total.tolist()}"
    print_on_rank_0("reduce: rank 0 has the sum; nothing is promised about the tensors of the others")
    return {"before": kept.tolist(), "after": x.tolist()}


def barrier(group: Group) -> torch.Tensor:
    """A barrier by hand: return a flag for each rank that is known to have come.

    Dissemination: in rounds of distance 1, 2, 4, ... each tells its right and hears from its left.
    Source: Hensgen, Finkel and Manber, Int. J. Parallel Program. 17(1), 1988, doi 10.1007/BF01379320.
    """
    rank, n = group.rank, group.world_size
    heard = torch.zeros(n, device=group.device)
    heard[rank] = 1
    distance = 1
    while distance < n:
        incoming = torch.empty_like(heard)
        sendrecv(heard, (rank + distance) % n, incoming, (rank - distance) % n)
        heard = torch.maximum(heard, incoming)
        distance *= 2
    return heard


def barrier_by_hand(group: Group) -> None:
    with record() as log:
        heard = barrier(group)
    assert heard.all(), f"rank {group.rank} leaves the barrier and has heard of {int(heard.sum())} rank(s)"
    rounds = (group.world_size - 1).bit_length()  # log2, rounded up
    assert log.count("send") == rounds, f"{log.count('send')} messages, expected are {rounds}"
    print_on_rank_0(f"a barrier by hand: {rounds} message(s) from each rank, and each has heard of all")


def count_runs_ahead(group: Group) -> None:
    """If only some ranks make a group, they have counted more groups than the others.

    torch names a group by that count. No rank may make another group here: it would have two names, and
    the ranks would wait for each other until the timeout.
    """
    made = dist.distributed_c10d.get_pg_count()
    if group.rank == 0:
        dist.new_group([0], use_local_synchronization=True)
    ahead = dist.distributed_c10d.get_pg_count() - made
    everyone = [None] * group.world_size
    dist.all_gather_object(everyone, ahead)
    assert everyone == [1] + [0] * (group.world_size - 1), f"the ranks are ahead by {everyone}"
    print_on_rank_0(f"rank 0 alone made a group: the ranks' counts of groups are ahead by {everyone}")


def main() -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        two_groups(group)
        order_of_members(group)
        members_only(group)
        outsiders(group)
        async_op(group, dist.PrefixStore("lab 04", store))
        averages(group)
        uneven_all_to_all(group)
        left = leftovers(group)
        barrier_by_hand(group)
        count_runs_ahead(group)  # the last: from here on no rank may make a group
        record_results("lab_04_groups", left)


if __name__ == "__main__":
    run(main)
