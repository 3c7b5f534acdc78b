"""The first lab: ranks share the numbers 1 to 1,797, and together they know the sum of all.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_00_hello.py
Written by:  notebooks/00_start_here.ipynb (edit it there)
"""

import torch
import torch.distributed as dist

ITEMS = 1797


def share_of(items: torch.Tensor, rank: int, world_size: int) -> torch.Tensor:
    """The share of one rank: every ``world_size``-th item, beginning with item ``rank``.

    ``items`` has the shape (n, ...), the share has n // world_size rows or one more.
    """
    return items[rank::world_size]


def main() -> None:
    dist.init_process_group("gloo")  # torchrun has told each process who it is
    rank = dist.get_rank()
    world_size = dist.get_world_size()

    numbers = torch.arange(1, ITEMS + 1)
    mine = share_of(numbers, rank, world_size)
    total = mine.sum()
    print(f"rank {rank} of {world_size}: {len(mine)} numbers, their sum is {total}")

    dist.all_reduce(total)  # adds up over all ranks; afterwards each rank holds the sum
    assert total.item() == ITEMS * (ITEMS + 1) // 2, f"rank {rank}: the sum over all ranks is {total}"
    if rank == 0:
        print(f"together: the sum is {total}, as one process finds it")

    dist.barrier()  # no rank leaves while another one still talks to it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
