"""Exercise 05: a reduce-scatter in a ring."""

import torch
import torch.distributed as dist

from shared.comm.p2p import sendrecv


def ring_reduce_scatter(x: torch.Tensor) -> torch.Tensor:
    """Return chunk ``rank`` of the sum of ``x`` over all ranks.

    ``x`` is one-dimensional, contiguous and of the same shape on each rank; its length divides by the
    number of ranks n. It may be overwritten. The result has len(x) / n elements. Each rank sends n - 1
    messages, each of one chunk, to its right neighbour.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.tensor_split(n)
    # solution: begin
    for step in range(n - 1):
        outgoing, target = chunks[(rank - step - 1) % n], chunks[(rank - step - 2) % n]
        incoming = torch.empty_like(target)
        sendrecv(outgoing, right, incoming, left)
        target += incoming
    return chunks[rank]
    # solution: end
