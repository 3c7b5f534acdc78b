# rejected: the line of rank 2 is missing
"""The last rank receives the token and stops."""

import torch
import torch.distributed as dist


def print_in_turn(text: str, token: torch.Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.recv(token, rank - 1)
    if rank < n - 1:
        print(text, flush=True)
        dist.send(token, rank + 1)
