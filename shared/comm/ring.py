"""The two halves of a ring all-reduce, on the first n ranks. Taught in lesson 05."""

import torch
import torch.distributed as dist

from shared.comm.p2p import sendrecv


def ring_reduce_scatter(x: torch.Tensor, n: int) -> torch.Tensor:
    """Return this rank's of ``n`` equal chunks of ``x``, summed over ranks 0 .. n - 1. Collective among them.

    ``x`` is contiguous and serves as work space: its other chunks end as partial sums. Each rank sends
    n - 1 chunks to its right neighbour.
    """
    rank = dist.get_rank()
    chunks = x.chunk(n)
    for step in range(1, n):
        outgoing, target = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
        incoming = torch.empty_like(target)
        sendrecv(outgoing, (rank + 1) % n, incoming, (rank - 1) % n)
        target += incoming
    return chunks[rank]


def ring_all_gather(x: torch.Tensor, n: int) -> None:
    """Fill ``x`` on ranks 0 .. n - 1: chunk r of ``n`` equal ones is rank r's. Collective among them."""
    rank = dist.get_rank()
    chunks = x.chunk(n)
    for step in range(n - 1):
        sendrecv(chunks[(rank - step) % n], (rank + 1) % n, chunks[(rank - step - 1) % n], (rank - 1) % n)
