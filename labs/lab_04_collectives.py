"""Each collective: what every rank holds before it and after it, equal to what one process computes.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_04_collectives.py
Written by:  notebooks/04_collectives.ipynb
"""

import os
import time

import torch
import torch.distributed as dist

from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order
from shared.runtime.results import record_results
from shared.runtime.run import run

MOVING = ("broadcast", "scatter", "gather", "all_gather", "all_to_all")
ADDING = ("reduce", "all_reduce", "reduce_scatter")
OBJECTS = ("broadcast_object_list", "scatter_object_list", "gather_object", "all_gather_object")


def brings(name: str, rank: int, n: int) -> list:
    """What a rank brings to a collective: n numbers, or just one to a gather; to a scatter only rank 0.

    Tens tell the rank, ones the position: rank 2 of 4 brings 30, 31, 32, 33. Objects are letters, which
    differ in length: rank 2 brings "ccc".
    """
    if name.startswith("scatter") and rank > 0:
        return []
    words = [letter * (r + 1) for r, letter in enumerate("abcdefgh"[:n])]
    if name in OBJECTS:
        return words if "scatter" in name else [words[rank]]
    whole = [10 * (rank + 1) + position for position in range(n)]
    return whole[:1] if "gather" in name else whole


def call_tensors(name: str, mine: list[int], group: Group) -> list[int | None]:
    """Call a collective; return what this rank holds then, None where nothing is promised."""
    n, root = group.world_size, group.rank == 0
    x = torch.tensor(mine, dtype=torch.int64, device=group.device)
    piece = torch.zeros(1, dtype=torch.int64, device=group.device)
    pieces = list(torch.zeros(n, dtype=torch.int64, device=group.device).split(1))
    match name:
        case "broadcast":
            dist.broadcast(x, src=0)
            return x.tolist()
        case "scatter":
            dist.scatter(piece, list(x.split(1)) if root else None, src=0)
            return piece.tolist()
        case "gather":
            dist.gather(x, pieces if root else None, dst=0)
            return torch.cat(pieces).tolist() if root else []
        case "all_gather":
            dist.all_gather(pieces, x)
            return torch.cat(pieces).tolist()
        case "reduce":
            dist.reduce(x, dst=0)  # a sum, unless `op` says otherwise
            return x.tolist() if root else [None] * n
        case "all_reduce":
            dist.all_reduce(x)
            return x.tolist()
        case "reduce_scatter":
            dist.reduce_scatter(piece, list(x.split(1)))
            return piece.tolist()
        case "all_to_all":
            received = torch.zeros_like(x)
            dist.all_to_all_single(received, x)
            return received.tolist()


def call_objects(name: str, mine: list[str], group: Group) -> list[str]:
    """The same for objects. They are pickled, so take them only from ranks that you trust."""
    n, root = group.world_size, group.rank == 0
    match name:
        case "broadcast_object_list":
            dist.broadcast_object_list(mine, src=0)
            return mine
        case "scatter_object_list":
            taken = [None]
            dist.scatter_object_list(taken, mine if root else None, src=0)
            return taken
        case "gather_object":
            taken = [None] * n if root else None
            dist.gather_object(mine[0], taken, dst=0)
            return taken or []
        case "all_gather_object":
            taken = [None] * n
            dist.all_gather_object(taken, mine[0])
            return taken


def reference(name: str, rows: list[list]) -> list[list]:
    """What all ranks hold afterwards, by one process; ``rows[r]`` is what rank r brings."""
    n = len(rows)
    everything = [one for row in rows for one in row]
    sums = [sum(column) for column in zip(*rows, strict=True)] if name in ADDING else None
    match name.removesuffix("_list").removesuffix("_object"):
        case "broadcast":
            return [rows[0]] * n
        case "scatter":
            return [[one] for one in rows[0]]
        case "gather":
            return [everything] + [[]] * (n - 1)
        case "all_gather":
            return [everything] * n
        case "reduce":
            return [sums] + [[None] * n] * (n - 1)
        case "all_reduce":
            return [sums] * n
        case "reduce_scatter":
            return [[one] for one in sums]
        case "all_to_all":
            return [list(column) for column in zip(*rows, strict=True)]


def barrier(group: Group) -> tuple[list[int], list[int]]:
    """How many ranks have come to the barrier when this rank comes, and when this rank goes on."""
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    store = dist.PrefixStore("lab 04", store)
    while store.add("came", 0) < group.rank:  # they come one by one
        time.sleep(0.01)
    if group.rank == group.world_size - 1:
        time.sleep(0.2)  # the others wait
    before = store.add("came", 1)
    dist.barrier()
    return [before], [store.add("came", 0)]


def main() -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        rank, n, rows = group.rank, group.world_size, {}
        for name in MOVING + ADDING + OBJECTS:
            call = call_objects if name in OBJECTS else call_tensors
            after = call(name, brings(name, rank, n), group)
            expected = reference(name, [brings(name, r, n) for r in range(n)])[rank]
            assert after == expected, (name, after, expected)
            rows[name] = {"before": brings(name, rank, n), "after": after}
        before, after = barrier(group)
        assert (before, after) == ([rank + 1], [n]), (before, after)
        rows["barrier"] = {"before": before, "after": after}
        example = f"all_to_all leaves me {rows['all_to_all']['after']}"
        print_in_rank_order(f"{len(rows)} collectives, all as in one process; {example}")
        record_results("lab_04_collectives", rows)


if __name__ == "__main__":
    run(main)
