# rejected: keys and values, N - 1 times
"""The keys go home as well, where nobody needs them."""

import math

import torch
import torch.distributed as dist


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, diagonal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Given: attention of some queries to some keys alone, and the logsumexp of each query's scores.

    (..., queries, width) and (..., queries). ``diagonal``: both are of the same positions, so that a query
    sees no key after its own.
    """
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if diagonal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    lse = scores.logsumexp(-1)
    return (scores - lse.unsqueeze(-1)).exp() @ v, lse


def merge(
    out: torch.Tensor, lse: torch.Tensor, more: torch.Tensor, more_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention to some keys, and of the same queries to other keys, become attention to all of these.

    Args:
        out, more: (..., queries, width), what ``attend`` returned for the one and for the others.
        lse, more_lse: (..., queries). -inf, with an output of zeros, stands for no keys at all.

    Returns:
        The output and the logsumexp for all keys. Leave the arguments as they are. An lse may be 1,000 or
        more: exp of that is infinite.
    """
    both = torch.logaddexp(lse, more_lse)
    out = out * (lse - both).exp().unsqueeze(-1) + more * (more_lse - both).exp().unsqueeze(-1)
    return out, both


def ring_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention over a sequence of 2N chunks. Rank r holds chunks r and 2N - 1 - r, in that order.

    Args:
        q, k, v: (batch, heads, two chunks, width) of this rank. Leave them as they are.

    Returns:
        The output, and the logsumexp of each query, (batch, heads, two chunks).

    Keys and values go to the next rank, N - 1 times. Rank N - 1 sends to rank 0. Compute no block of
    queries and keys that the order of the sequence forbids: 2N + 1 of them are left on each rank.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    half = q.shape[-2] // 2
    halves = (slice(0, half), slice(half, 2 * half))
    mine = (rank, 2 * ranks - 1 - rank)
    out = torch.zeros_like(q)
    lse = q.new_full(q.shape[:-1], -math.inf)
    kv = torch.stack([k, v])
    for step in range(ranks):
        last = False
        if not last:
            incoming = torch.empty_like(kv)
            send = dist.P2POp(dist.isend, kv, (rank + 1) % ranks)
            receive = dist.P2POp(dist.irecv, incoming, (rank - 1) % ranks)
            works = dist.batch_isend_irecv([send, receive])
        source = (rank - step) % ranks
        theirs = (source, 2 * ranks - 1 - source)
        for rows, query in zip(halves, mine, strict=True):
            for columns, key in zip(halves, theirs, strict=True):
                if key <= query:
                    keys, values = kv[0][..., columns, :], kv[1][..., columns, :]
                    more, more_lse = attend(q[..., rows, :], keys, values, key == query)
                    merged, both = merge(out[..., rows, :], lse[..., rows], more, more_lse)
                    out[..., rows, :] = merged
                    lse[..., rows] = both
        if not last:
            for work in works:
                work.wait()
            kv = incoming
    return out, lse
