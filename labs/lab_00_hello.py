"""The first lab: ranks share the numbers 1 to 1,797, and together they know the sum of all.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_00_hello.py
Written by:  notebooks/00_start_here.ipynb
"""

import os

import torch
import torch.distributed as dist

ITEMS = 1797


def share_of(items: torch.Tensor, rank: int, world_size: int) -> torch.Tensor:
    """The share of one rank: every ``world_size``-th item, beginning with item ``rank``.

    ``items`` has the shape (n, ...), the share has n // world_size rows or one more.
    """
    return items[rank::world_size]


def setup() -> torch.device:
    """Join the group that torchrun describes; return this rank's device: a GPU of its own, else the CPU."""
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu")
    device_id = None
    if torch.accelerator.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device(torch.accelerator.current_accelerator().type, local_rank)
        device_id = device
        torch.accelerator.set_device_index(local_rank)
    dist.init_process_group(dist.get_default_backend_for_device(device), device_id=device_id)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks on {device.type} with {dist.get_backend()}")
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
