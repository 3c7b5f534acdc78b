"""One process hands tensors to another: to each rank, in order, and all ranks at once to their neighbours.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_03_messages.py
Written by:  notebooks/03_point_to_point.ipynb (edit it there)
"""

import os
import socket
import sys

import torch
import torch.distributed as dist

LETTERS = 20


def to_each_rank(rank: int, n: int, device: torch.device) -> None:
    """Rank 0 sends a tensor to each other rank. The receiver brings one of the same shape and dtype."""
    if rank == 0:
        for receiver in range(1, n):
            dist.send(torch.full((3,), float(receiver), device=device), dst=receiver)
    else:
        box = torch.empty(3, device=device)
        dist.recv(box, src=0)
        assert box.tolist() == [rank, rank, rank]


def in_order(rank: int, n: int, device: torch.device) -> None:
    """Messages of one sender are taken in the order in which they were sent."""
    if rank == 0:
        for letter in range(LETTERS):
            for receiver in range(1, n):
                dist.send(torch.tensor([letter], device=device), dst=receiver)
    else:
        box = torch.empty(1, dtype=torch.int64, device=device)
        for letter in range(LETTERS):
            dist.recv(box, src=0)
            assert box.item() == letter


def exchange(rank: int, n: int, device: torch.device) -> None:
    """Each rank sends to its right neighbour and receives from its left one, both in one batch."""
    right, left = (rank + 1) % n, (rank - 1) % n
    mine = torch.full((3,), float(rank), device=device)
    box = torch.empty(3, device=device)
    operations = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, box, left)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert box.tolist() == [left, left, left]


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
    device = setup()
    rank, n = dist.get_rank(), dist.get_world_size()
    if n < 2:
        raise SystemExit("one rank has nobody to talk to: --nproc-per-node=2")
    to_each_rank(rank, n, device)
    in_order(rank, n, device)
    exchange(rank, n, device)
    dist.barrier()
    if rank == 0:
        print("rank 0 sent a tensor to each other rank")
        print(f"{LETTERS} messages of one sender came in order")
        print("each rank has its left neighbour's tensor")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
