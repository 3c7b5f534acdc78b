# rejected: the result is right, but this rank sent 20,160 bytes in 2 message(s)
"""A ring in which each message holds everything that has come so far."""

import torch
import torch.distributed as dist

from shared.comm.p2p import sendrecv


def all_gather(piece: torch.Tensor) -> torch.Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    have = piece
    for step in range(n - 1):  # own piece last
        incoming = torch.empty((step + 1) * len(piece), dtype=piece.dtype)
        sendrecv(have, right, incoming, left)
        have = torch.cat([incoming, piece])
    start = (rank + 1) % n  # the rank whose piece stands first
    return torch.cat([have.chunk(n)[(place - start) % n] for place in range(n)])
