# rejected: the lines came in the order of ranks [0, 2, 1]; 0 messages were sent
"""Everyone prints at once."""

import torch
import torch.distributed as dist


def print_in_turn(text: str, token: torch.Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank < n:
        print(text, flush=True)
