# accepted: no ring; each rank sends its own piece to every other, all at once
"""n - 1 messages from each rank, all under way together."""

import torch
import torch.distributed as dist


def all_gather(piece: torch.Tensor) -> torch.Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    whole = piece.repeat(n)
    pieces = whole.chunk(n)
    works = []
    for other in range(n):
        if other != rank:
            works.append(dist.isend(piece, other))
            works.append(dist.irecv(pieces[other], other))
    for work in works:
        work.wait()
    return whole
