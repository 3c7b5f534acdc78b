# rejected: in place 0 lies the piece of rank 1
"""Pieces stand in the order in which they come: my own first."""

import torch
import torch.distributed as dist

from shared.comm.p2p import sendrecv


def all_gather(piece: torch.Tensor) -> torch.Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    pieces = [piece]
    for _ in range(n - 1):
        incoming = torch.empty_like(piece)
        sendrecv(pieces[-1], right, incoming, left)
        pieces.append(incoming)
    return torch.cat(pieces)
