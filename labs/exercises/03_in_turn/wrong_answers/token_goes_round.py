# rejected: the lines are in order, but 3 messages were sent; 2 are enough
"""The last rank hands the token back to rank 0."""

import torch
import torch.distributed as dist


def print_in_turn(text: str, token: torch.Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.recv(token, rank - 1)
    print(text, flush=True)
    dist.send(token, (rank + 1) % n)
    if rank == 0:
        dist.recv(token, n - 1)
