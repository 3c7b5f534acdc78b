"""Each collective, those for objects and the barrier: what is held before and after, as in one process.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_04/proof_before_after.py
"""

import os
import time

import torch
import torch.distributed as dist

from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order
from shared.runtime.results import record_results
from shared.runtime.run import run

from lab_04_collectives import ADDING, MOVING, brings, labels
from lesson_04.paper import on_paper

OBJECTS = ("broadcast_object_list", "scatter_object_list", "gather_object", "all_gather_object")


def words_before(name: str, rank: int, n: int) -> list[str]:
    """What a rank brings: words that differ in length, rank 2 brings "ccc"; to a scatter only rank 0 does."""
    words = [letter * (r + 1) for r, letter in enumerate("abcdefgh"[:n])]
    if name == "scatter_object_list":
        return words if rank == 0 else []
    return [words[rank]]


def call_objects(name: str, mine: list[str], group: Group) -> list[str]:
    """Call one of torch's collectives for objects; return what this rank holds afterwards."""
    n = group.world_size
    if name == "broadcast_object_list":
        dist.broadcast_object_list(mine, src=0)
        return mine
    if name == "scatter_object_list":
        received = [None]
        dist.scatter_object_list(received, mine if group.rank == 0 else None, src=0)
        return received
    if name == "gather_object":
        received = [None] * n if group.rank == 0 else None
        dist.gather_object(mine[0], received, dst=0)
        return received or []
    received = [None] * n
    dist.all_gather_object(received, mine[0])
    return received


def expected_words(name: str, rank: int, n: int) -> list[str]:
    """What a rank holds afterwards, by one process."""
    everything = [words_before("all_gather_object", r, n)[0] for r in range(n)]
    held = {
        "broadcast_object_list": everything[:1],
        "scatter_object_list": everything[rank : rank + 1],
        "gather_object": everything if rank == 0 else [],
        "all_gather_object": everything,
    }
    return held[name]


def assert_as_expected(name: str, after: list, expected: list) -> None:
    assert after == expected, f"{name} leaves {after} here, one process computes {expected}"


def run_tensors(group: Group) -> int:
    """Compare what this rank holds after each collective with what it holds on paper; return how many.

    A matrix of two equal columns must end as the vector does, twice.
    """
    rank, n, names = group.rank, group.world_size, labels(group.world_size)
    paper = on_paper(n)[rank]
    for collective in MOVING + ADDING:
        name = collective.__name__
        x = brings(rank, n).to(group.device)
        if name in ("gather", "all_gather"):
            x = x[:1]
        both = torch.stack([x, x], dim=1)
        after, both_after = collective(x), collective(both)
        if after is None:
            assert set(paper[name]["after"]) <= {None}, f"{name} leaves nothing here"
            continue
        assert_as_expected(name, [names[number] for number in after.tolist()], paper[name]["after"])
        same = torch.equal(both_after, torch.stack([after, after], dim=1))
        assert same, f"{name} of a matrix leaves {both_after.tolist()}, of its columns {after.tolist()}"
    return len(paper)


def run_objects(group: Group) -> dict[str, dict]:
    """The same for torch's collectives for objects; {name: what this rank holds before and after}."""
    rank, n = group.rank, group.world_size
    rows = {}
    for name in OBJECTS:
        before = words_before(name, rank, n)
        after = call_objects(name, list(before), group)
        assert_as_expected(name, after, expected_words(name, rank, n))
        rows[name] = {"before": before, "after": after}
    return rows


def run_barrier(group: Group) -> dict[str, list[int]]:
    """How many ranks have come to the barrier when this rank comes, and when this rank goes on."""
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    store = dist.PrefixStore("lab 04", store)
    while store.add("came", 0) < group.rank:  # they come one by one
        time.sleep(0.01)
    if group.rank == group.world_size - 1:
        time.sleep(0.2)  # the others wait
    before = store.add("came", 1)
    dist.barrier()
    after = store.add("came", 0)
    assert before == group.rank + 1, f"{before} ranks have come, this one is number {group.rank + 1}"
    assert after == group.world_size, f"a rank left the barrier when {after} of {group.world_size} had come"
    return {"before": [before], "after": [after]}


def main() -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        count = run_tensors(group)
        rows = run_objects(group) | {"barrier": run_barrier(group)}
        print_in_rank_order(f"{count} collectives, and {len(rows)} more: all as in one process")
        record_results("04_before_after", rows)


if __name__ == "__main__":
    run(main)
