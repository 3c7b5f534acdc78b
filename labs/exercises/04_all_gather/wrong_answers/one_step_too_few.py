# rejected: numbers were never written: is a step missing?
"""n - 2 steps: the piece of the right neighbour never arrives."""

import torch
import torch.distributed as dist

from shared.comm.p2p import sendrecv


def all_gather(piece: torch.Tensor) -> torch.Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    pieces = [torch.empty_like(piece) for _ in range(n)]
    pieces[rank].copy_(piece)
    for step in range(n - 2):
        sendrecv(pieces[(rank - step) % n], right, pieces[(rank - step - 1) % n], left)
    return torch.cat(pieces)
