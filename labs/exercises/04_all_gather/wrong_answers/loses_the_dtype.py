# rejected: the result is of torch.float32, the pieces are of torch.float64
"""The result is made without a dtype, and so of torch's default."""

import torch
import torch.distributed as dist

from shared.comm.p2p import sendrecv


def all_gather(piece: torch.Tensor) -> torch.Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    pieces = [torch.empty_like(piece) for _ in range(n)]
    pieces[rank].copy_(piece)
    for step in range(n - 1):
        sendrecv(pieces[(rank - step) % n], right, pieces[(rank - step - 1) % n], left)
    result = torch.zeros(n * len(piece))
    result.copy_(torch.cat(pieces))
    return result
