"""Exercise 20: ring attention over a zigzag, forward and backward."""

import math

import torch
import torch.distributed as dist


def blocks(source: int, length: int) -> list[tuple[slice, slice, bool]]:
    """Given: which blocks this rank computes with the keys of rank ``source``.

    Of 2N chunks rank r holds r and 2N - 1 - r, in that order, ``length`` positions together. A block is
    (where in the queries, where in the keys, diagonal). No block has keys of a later chunk. ``diagonal``:
    both are of the same chunk.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    halves = (slice(0, length // 2), slice(length // 2, length))
    needed = []
    for rows, query in zip(halves, (rank, 2 * ranks - 1 - rank), strict=True):
        for columns, key in zip(halves, (source, 2 * ranks - 1 - source), strict=True):
            if key <= query:
                needed.append((rows, columns, key == query))
    return needed


def scores_of(q: torch.Tensor, k: torch.Tensor, diagonal: bool) -> torch.Tensor:
    """Given: (..., queries, keys). On the diagonal a query sees no key after its own."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if diagonal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, diagonal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Given: attention to these keys alone, (..., queries, width), and its logsumexp, (..., queries)."""
    scores = scores_of(q, k, diagonal)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def merge(
    out: torch.Tensor, lse: torch.Tensor, more: torch.Tensor, more_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Combine attention to some keys with attention of the same queries to other keys.

    Args:
        out, more: (..., queries, width), what ``attend`` returned for the one and for the others.
        lse, more_lse: (..., queries). -inf, with an output of zeros, stands for no keys at all.

    Returns:
        The output and the logsumexp for all keys. Leave the arguments as they are. An lse may be 1,000 or
        more: exp of that is infinite.
    """
    # solution: begin
    both = torch.logaddexp(lse, more_lse)
    out = out * (lse - both).exp().unsqueeze(-1) + more * (more_lse - both).exp().unsqueeze(-1)
    return out, both
    # solution: end


def to_next_rank(tensor: torch.Tensor) -> tuple[torch.Tensor, list[dist.Work]]:
    """Given: begin to send ``tensor`` to the next rank, and to receive that of the rank before.

    Returns:
        The tensor that is received, and the works to wait for before anybody uses it.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    incoming = torch.empty_like(tensor)
    send = dist.P2POp(dist.isend, tensor, (rank + 1) % ranks)
    receive = dist.P2POp(dist.irecv, incoming, (rank - 1) % ranks)
    return incoming, dist.batch_isend_irecv([send, receive])


def ring_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention over the whole sequence; keys and values go to the next rank, N - 1 times.

    A rank computes while they are on their way: it waits only after that.

    Args:
        q, k, v: (batch, heads, length, width) of this rank's two chunks. Leave them as they are.

    Returns:
        The output, and the logsumexp of each query, (batch, heads, length).
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    out = torch.zeros_like(q)
    lse = q.new_full(q.shape[:-1], -math.inf)  # no keys yet
    kv = torch.stack([k, v])
    for step in range(ranks):
        # solution: begin
        last = step == ranks - 1
        if not last:
            incoming, works = to_next_rank(kv)  # on its way while we compute
        source = (rank - step) % ranks
        for rows, columns, diagonal in blocks(source, q.shape[-2]):
            keys, values = kv[..., columns, :]
            more, more_lse = attend(q[..., rows, :], keys, values, diagonal)
            out[..., rows, :], lse[..., rows] = merge(out[..., rows, :], lse[..., rows], more, more_lse)
        if not last:
            for work in works:
                work.wait()
            kv = incoming
        # solution: end
    return out, lse


def weights_of(q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, diagonal: bool) -> torch.Tensor:
    """The softmax weights of one block, (..., queries, keys), as they are in attention to *all* keys.

    ``lse``: (..., queries), what ``ring_attention`` returned.
    """
    scores = scores_of(q, k, diagonal)
    # solution: begin
    return (scores - lse.unsqueeze(-1)).exp()
    # solution: end


def add_gradients(
    source: int,
    gradient: torch.Tensor,
    q: torch.Tensor,
    kv: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    grad_q: torch.Tensor,
    grad_kv: torch.Tensor,
) -> None:
    """Given: our queries with the keys and values of rank ``source``; adds to ``grad_q`` and ``grad_kv``."""
    for rows, columns, diagonal in blocks(source, q.shape[-2]):
        keys, values = kv[..., columns, :]
        weights = weights_of(q[..., rows, :], keys, lse[..., rows], diagonal)
        grad_out = gradient[..., rows, :]
        grad_weights = grad_out @ values.transpose(-2, -1)
        grad_scores = weights * (grad_weights - (grad_out * out[..., rows, :]).sum(-1, keepdim=True))
        grad_scores = grad_scores / math.sqrt(q.shape[-1])
        grad_q[..., rows, :] += grad_scores @ keys
        grad_kv[0][..., columns, :] += grad_scores.transpose(-2, -1) @ q[..., rows, :]
        grad_kv[1][..., columns, :] += weights.transpose(-2, -1) @ grad_out


def ring_backward(
    gradient: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of this rank's q, k and v. Send each tensor at most N times.

    ``gradient`` is that of ``out``; ``out`` and ``lse`` are what ``ring_attention`` returned. Keys and values
    go round once more. Their gradient travels with them, and ends on the rank that they belong to.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    grad_q = torch.zeros_like(q)
    kv = torch.stack([k, v])
    grad_kv = torch.zeros_like(kv)
    for step in range(ranks):
        # solution: begin
        source = (rank - step) % ranks
        add_gradients(source, gradient, q, kv, out, lse, grad_q, grad_kv)
        kv, kv_works = to_next_rank(kv)
        grad_kv, grad_kv_works = to_next_rank(grad_kv)
        for work in kv_works + grad_kv_works:
            work.wait()
        # solution: end
    return grad_q, grad_kv[0], grad_kv[1]
