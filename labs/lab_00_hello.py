"""The first lab: ranks share the numbers 1 to 1,797, and together they know the sum of all.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_00_hello.py
Written by:  notebooks/00_start_here.ipynb (edit it there)
"""

import os
import socket
import sys

import torch
import torch.distributed as dist

ITEMS = 1797


def share_of(items: torch.Tensor, rank: int, world_size: int) -> torch.Tensor:
    """The share of one rank: every ``world_size``-th item, beginning with item ``rank``.

    ``items`` has the shape (n, ...), the share has n // world_size rows or one more.
    """
    return items[rank::world_size]


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
    rank = int(os.environ["RANK"])  # torchrun has told each process who it is
    world_size = int(os.environ["WORLD_SIZE"])
    device = setup()

    numbers = torch.arange(1, ITEMS + 1, device=device)
    mine = share_of(numbers, rank, world_size)
    total = mine.sum()
    print(f"rank {rank} of {world_size}: {len(mine)} numbers, their sum is {total}")

    dist.all_reduce(total)  # adds up over all ranks; afterwards each rank holds the sum
    assert total == ITEMS * (ITEMS + 1) // 2, f"rank {rank}: the sum over all ranks is {total}"
    if rank == 0:
        print(f"together: the sum is {total}, as one process finds it")

    dist.barrier()  # no rank leaves while another one still talks to it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
