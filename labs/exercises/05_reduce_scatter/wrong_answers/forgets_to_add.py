# rejected: in the first of them the numbers of rank 0 are missing
"""Passes chunks on without adding its own."""

import torch
import torch.distributed as dist


def ring_reduce_scatter(x: torch.Tensor) -> torch.Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.tensor_split(n)
    for step in range(n - 1):
        outgoing, target = chunks[(rank - step - 1) % n], chunks[(rank - step - 2) % n]
        incoming = torch.empty_like(target)
        sending = dist.isend(outgoing, right)
        dist.recv(incoming, left)
        target.copy_(incoming)
        sending.wait()
    return chunks[rank]
