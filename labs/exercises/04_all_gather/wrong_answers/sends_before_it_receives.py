# rejected: stuck: it waited 30 s for a message that did not come
"""Every rank waits until its piece is taken, and none takes one."""

import torch
import torch.distributed as dist


def all_gather(piece: torch.Tensor) -> torch.Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    pieces = [torch.empty_like(piece) for _ in range(n)]
    pieces[rank].copy_(piece)
    for step in range(n - 1):
        dist.send(pieces[(rank - step) % n], right)
        dist.recv(pieces[(rank - step - 1) % n], left)
    return torch.cat(pieces)
