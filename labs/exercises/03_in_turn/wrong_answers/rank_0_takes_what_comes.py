# rejected: the lines came in the order of ranks [0, 2, 1]; 2 messages were sent
"""All send their texts to rank 0, which prints them as they come."""

import torch
import torch.distributed as dist


def print_in_turn(text: str, token: torch.Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    letters = torch.tensor(list(text.encode()))
    if rank > 0:
        dist.send(letters, 0)
        return
    print(text, flush=True)
    for _ in range(n - 1):
        dist.recv(letters)
        print(bytes(letters.tolist()).decode(), flush=True)
