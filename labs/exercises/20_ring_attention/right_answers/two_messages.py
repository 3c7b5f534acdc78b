# accepted: keys and values travel apart, and the logsumexp is merged by a sigmoid
"""Keys and values in messages of their own; torch's way to merge."""

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
    share = torch.sigmoid(more_lse - lse).unsqueeze(-1)
    return out - share * (out - more), torch.logaddexp(lse, more_lse)


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
    out, lse = None, None
    for step in range(ranks):
        if step == 0:  # our own keys: the diagonal of both chunks, and the late queries with the early keys
            early = attend(q[..., :half, :], k[..., :half, :], v[..., :half, :], True)
            late = attend(q[..., half:, :], k[..., half:, :], v[..., half:, :], True)
            late = merge(*late, *attend(q[..., half:, :], k[..., :half, :], v[..., :half, :], False))
            out = torch.cat([early[0], late[0]], dim=-2)
            lse = torch.cat([early[1], late[1]], dim=-1)
        elif step <= rank:  # keys of an earlier rank: its early chunk, for all of our queries
            out, lse = merge(out, lse, *attend(q, k[..., :half, :], v[..., :half, :], False))
        else:  # keys of a later rank: both of its chunks, for our late queries
            late = merge(out[..., half:, :], lse[..., half:], *attend(q[..., half:, :], k, v, False))
            out = torch.cat([out[..., :half, :], late[0]], dim=-2)
            lse = torch.cat([lse[..., :half], late[1]], dim=-1)
        if step < ranks - 1:
            arrived = []
            for tensor in (k, v):
                incoming = torch.empty_like(tensor)
                sending = dist.isend(tensor.contiguous(), (rank + 1) % ranks)
                dist.recv(incoming, (rank - 1) % ranks)
                sending.wait()
                arrived.append(incoming)
            k, v = arrived
    return out, lse
