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

OBJECTS = ("broadcast_object_list", "scatter_object_list", "gather_object", "all_gather_object")


def numbers_before(name: str, rank: int, n: int) -> list[int]:
    """What a rank brings to a collective: a piece to a gather; to a scatter nothing but on rank 0."""
    numbers = brings(rank, n).tolist()
    if name in ("gather", "all_gather"):
        return numbers[:1]
    if name == "scatter" and rank > 0:
        return []
    return numbers


def words_before(name: str, rank: int, n: int) -> list[str]:
    """The same for objects. They are words that differ in length: rank 2 brings "ccc"."""
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


def reference(name: str, rows: list[list]) -> list[list]:
    """What all ranks hold afterwards, by one process; ``rows[r]`` is rank r's before. None is anything."""
    n = len(rows)
    everything = [value for row in rows for value in row]
    match name.removesuffix("_list").removesuffix("_object"):
        case "broadcast":
            return [rows[0]] * n
        case "scatter":
            return [[value] for value in rows[0]]
        case "gather":
            return [everything] + [[]] * (n - 1)
        case "all_gather":
            return [everything] * n
        case "all_to_all":
            return [list(column) for column in zip(*rows, strict=True)]
    sums = [sum(column) for column in zip(*rows, strict=True)]
    match name:
        case "reduce":
            return [sums] + [[None] * n] * (n - 1)
        case "all_reduce":
            return [sums] * n
        case "reduce_scatter":
            return [[value] for value in sums]
    raise ValueError(name)


def assert_as_expected(name: str, after: list, expected: list) -> None:
    assert after == expected, f"{name} leaves {after} here, one process computes {expected}"


def run_tensors(group: Group) -> dict[str, dict]:
    """{collective: what this rank holds before and after it, as labels}; compared with ``reference``."""
    rank, n, names = group.rank, group.world_size, labels(group.world_size)
    rows = {}
    for collective in MOVING + ADDING:
        name = collective.__name__
        before = [numbers_before(name, r, n) for r in range(n)]
        mine = before[rank]
        if not mine:
            mine = brings(rank, n).tolist()  # in a scatter, ranks above 0 pass a tensor for its shape
        result = collective(torch.tensor(mine, device=group.device))
        expected = reference(name, before)[rank]
        after = [None] * n if name == "reduce" else []
        if result is not None:
            after = result.tolist()
        assert_as_expected(name, after, expected)
        rows[name] = {
            "before": [names[number] for number in before[rank]],
            "after": [None if number is None else names[number] for number in after],
        }
    return rows


def run_objects(group: Group) -> dict[str, dict]:
    """The same for torch's collectives for objects."""
    rank, n = group.rank, group.world_size
    rows = {}
    for name in OBJECTS:
        before = [words_before(name, r, n) for r in range(n)]
        after = call_objects(name, list(before[rank]), group)
        assert_as_expected(name, after, reference(name, before)[rank])
        rows[name] = {"before": before[rank], "after": after}
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
        rows = run_tensors(group) | run_objects(group) | {"barrier": run_barrier(group)}
        example = " ".join(rows["all_to_all"]["after"])
        print_in_rank_order(f"{len(rows)} collectives, all as in one process; all_to_all leaves {example}")
        record_results("04_before_after", rows)


if __name__ == "__main__":
    run(main)
