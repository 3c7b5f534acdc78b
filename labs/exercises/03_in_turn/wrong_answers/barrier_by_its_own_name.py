# rejected: a barrier was called; allowed are
"""The same function, imported in another way."""

import torch
import torch.distributed as dist
from torch.distributed import barrier


def print_in_turn(text: str, token: torch.Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    for turn in range(n):
        if turn == rank:
            print(text, flush=True)
        barrier()
