# accepted: it writes to stdout itself, takes the token from anyone, and sends by isend and wait
"""The same token by other calls."""

import sys

import torch
import torch.distributed as dist


def print_in_turn(text: str, token: torch.Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank:
        dist.recv(token)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    if rank + 1 != n:
        dist.isend(token, rank + 1, tag=0).wait()
