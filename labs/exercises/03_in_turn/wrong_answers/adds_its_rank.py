# rejected: '0: [rank 0] my turn' was printed; print text and nothing else
"""Prints more than the text."""

import torch
import torch.distributed as dist


def print_in_turn(text: str, token: torch.Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.recv(token, rank - 1)
    print(f"{rank}: {text}", flush=True)
    if rank < n - 1:
        dist.send(token, rank + 1)
