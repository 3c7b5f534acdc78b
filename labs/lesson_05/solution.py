"""Exercise 05: a reduce-scatter in a ring, and up to which size another way is as fast."""

import math

import torch
import torch.distributed as dist

from shared.comm.p2p import sendrecv


def ring_reduce_scatter(x: torch.Tensor) -> torch.Tensor:
    """Return chunk ``rank`` of the sum of ``x`` over all ranks.

    ``x`` is one-dimensional, contiguous and of the same shape on each rank; its length is divisible by the
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


def crossing_bytes(n: int, alpha_s: float, beta_s: float) -> float:
    """Return the largest S, in bytes, for which recursive doubling is at least as fast as a ring all-reduce.

    By the α–β model: M messages one after another with B bytes in all take M * alpha_s + B * beta_s; adding
    up is free. ``n`` is the number of ranks, a power of 2 and at least 2. If doubling is at least as fast
    for every S, return ``math.inf``.
    """
    # solution: begin
    fewer_messages = 2 * (n - 1) - math.log2(n)
    more_bytes = math.log2(n) - 2 * (n - 1) / n  # as a multiple of S
    if more_bytes == 0:
        return math.inf
    return fewer_messages * alpha_s / (more_bytes * beta_s)
    # solution: end
