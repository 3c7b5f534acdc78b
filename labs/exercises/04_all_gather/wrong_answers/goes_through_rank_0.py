# rejected: the result is right, but this rank sent 40,320 bytes in 2 message(s)
"""Rank 0 collects all pieces and sends the whole to everyone."""

import torch
import torch.distributed as dist


def all_gather(piece: torch.Tensor) -> torch.Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    whole = piece.repeat(n)
    if rank == 0:
        for other in range(1, n):
            dist.recv(whole.chunk(n)[other], other)
        for other in range(1, n):
            dist.send(whole, other)
    else:
        dist.send(piece, 0)
        dist.recv(whole, 0)
    return whole
