# rejected: a barrier was called; allowed are send and recv
"""The usual way with a collective."""

import torch
import torch.distributed as dist


def print_in_turn(text: str, token: torch.Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    for turn in range(n):
        if turn == rank:
            print(text, flush=True)
        dist.barrier()
