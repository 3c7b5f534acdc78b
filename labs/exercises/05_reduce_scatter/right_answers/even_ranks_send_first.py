# accepted: blocking calls only; even ranks send first, odd ranks and the last receive first
"""Somebody receives at any time, so send and recv suffice."""

import torch
import torch.distributed as dist


def ring_reduce_scatter(x: torch.Tensor) -> torch.Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.tensor_split(n)
    for step in range(n - 1):
        outgoing, target = chunks[(rank - step - 1) % n], chunks[(rank - step - 2) % n]
        incoming = torch.zeros_like(target)
        if rank % 2 == 0 and rank < n - 1:
            dist.send(outgoing, right)
            dist.recv(incoming, left)
        else:
            dist.recv(incoming, left)
            dist.send(outgoing, right)
        target.add_(incoming)
    return chunks[rank]
