# rejected: rank 0 sent to [1, 2], expected [1]
"""Rank 0 tells everybody at once; who prints first is luck."""

import torch
import torch.distributed as dist


def print_in_turn(text: str, token: torch.Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.recv(token, 0)
    print(text, flush=True)
    if rank == 0:
        for other in range(1, n):
            dist.send(token, other)
