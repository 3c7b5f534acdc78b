# rejected: the sums are right, but 2 messages with 13,440 bytes were sent
"""A ring that passes the whole tensor on: right sums, n times the traffic."""

import torch
import torch.distributed as dist


def ring_reduce_scatter(x: torch.Tensor) -> torch.Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    total, passing = x.clone(), x
    for _ in range(n - 1):
        incoming = torch.empty_like(x)
        sending = dist.isend(passing, right)
        dist.recv(incoming, left)
        sending.wait()
        total += incoming
        passing = incoming
    return total.tensor_split(n)[rank]
