# rejected: stuck: it waited 30 s for a message
"""Does not wait for the message to leave."""

import torch
import torch.distributed as dist


def print_in_turn(text: str, token: torch.Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.recv(token, rank - 1)
    print(text, flush=True)
    if rank < n - 1:
        dist.isend(token, rank + 1)
