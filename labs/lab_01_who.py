"""Every rank says who it is, and rank 0 prints the answers in rank order.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_01_who.py
Written by:  notebooks/01_topology.ipynb (edit it there)
"""

import os

import torch.distributed as dist

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU

NUMBERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


def who_am_i() -> dict[str, int]:
    """The numbers that the launcher gave this process, under the names of their variables."""
    return {name: int(os.environ[name]) for name in NUMBERS}


def nodes_of(everyone: list[dict[str, int]]) -> list[int]:
    """The node of each rank, by rank: ranks are counted node by node, on each node from local rank 0."""
    nodes: list[int] = []
    node = -1
    for process in everyone:
        if process["LOCAL_RANK"] == 0:
            node += 1
        nodes.append(node)
    return nodes


def rank_by_counting(me: dict[str, int], everyone: list[dict[str, int]]) -> int:
    """My rank as it should be: an offset, the number of processes on all nodes before, plus my local rank."""
    nodes = nodes_of(everyone)
    offset = sum(node < nodes[me["RANK"]] for node in nodes)
    return offset + me["LOCAL_RANK"]


def main() -> None:
    setup()
    me = who_am_i()

    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, me)  # afterwards each rank holds the answers of all, by rank
    assert me["RANK"] == dist.get_rank(), f"RANK is {me['RANK']}, the group says {dist.get_rank()}"
    assert me["RANK"] == rank_by_counting(me, everyone), f"counting does not give rank {me['RANK']}"
    if dist.get_rank() == 0:
        for process, node in zip(everyone, nodes_of(everyone), strict=True):
            local_rank = process["LOCAL_RANK"]
            print(
                f"rank {process['RANK']} of {process['WORLD_SIZE']}: local rank {local_rank} on node {node}"
            )

    dist.barrier()  # no rank leaves while another one still talks to it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
