# accepted: about log2(n) messages of growing size instead of n - 1, with the same bytes (Bruck's algorithm)
"""A rank that has k pieces sends them k places to the left, and receives as many from the right."""

import torch
import torch.distributed as dist

from shared.comm.p2p import sendrecv


def all_gather(piece: torch.Tensor) -> torch.Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    have = piece.clone()  # the pieces of ranks rank, rank + 1, ...
    count = 1
    while count < n:
        more = min(count, n - count)
        incoming = piece.new_empty(more * len(piece))
        sendrecv(have[: more * len(piece)].clone(), (rank - count) % n, incoming, (rank + count) % n)
        have = torch.cat([have, incoming])
        count += more
    return have.roll(rank * len(piece))
