"""Every rank says who it is, and rank 0 prints the answers in rank order.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_01_who.py
Written by:  notebooks/01_topology.ipynb (edit it there)
"""

import os
import socket
import sys

import torch
import torch.distributed as dist

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


def setup() -> torch.device:
    """Join the group that the launcher describes; return this rank's device: a GPU of its own, or the CPU.

    The CPU is for jobs without a GPU, and for RANK_BY_RANK_DEVICE=cpu. A job with too few GPUs ends here.
    """
    device = torch.device("cpu")
    gpu = "none"
    if torch.cuda.device_count() > 0 and os.environ.get("RANK_BY_RANK_DEVICE") != "cpu":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        gpu = str(torch.cuda.get_device_properties(device).uuid)
    store, rank, world_size = next(dist.rendezvous("env://"))
    store.set(f"GPU of rank {rank}", gpu)  # all ranks must choose the same backend
    gpus = set(store.multi_get([f"GPU of rank {other}" for other in range(world_size)])) - {b"none"}
    if 0 < len(gpus) < world_size:
        mine = f"rank {rank} on {socket.gethostname()} has {device}"
        ways = "start one rank for each GPU, or all with RANK_BY_RANK_DEVICE=cpu"
        sys.exit(f"{world_size} ranks, {len(gpus)} GPUs ({mine}): {ways}")
    backend = "nccl" if gpus else "gloo"
    bound = device if gpus else None
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, device_id=bound)
    if rank == 0:
        print(f"{world_size} ranks on {device.type} with {backend}")
    return device


def main() -> None:
    me = who_am_i()
    setup()

    everyone: list[dict[str, int]] = [None] * dist.get_world_size()
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
