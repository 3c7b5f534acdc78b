# rejected: rank 0 handed the token on before it had printed
"""Passes the token on first and prints then."""

import torch
import torch.distributed as dist


def print_in_turn(text: str, token: torch.Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.recv(token, rank - 1)
    if rank < n - 1:
        dist.send(token, rank + 1)
    print(text, flush=True)
