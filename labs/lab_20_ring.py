"""Ring attention: one sequence is divided over all ranks; keys and values go round, forward and backward.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_20_ring.py
Written by:  notebooks/20_context_parallel.ipynb (edit it there)
"""

import math
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU

Group = dist.ProcessGroup | None


def chunks_of(rank: int, ranks: int, zigzag: bool = True) -> list[int]:
    """Which of 2N chunks of the sequence a rank holds, in its order.

    Zigzag: one chunk from the beginning and its counterpart from the end. Otherwise: two neighbours.
    """
    return [rank, 2 * ranks - 1 - rank] if zigzag else [2 * rank, 2 * rank + 1]


def part_of(whole: Tensor, dim: int, group: Group = None, zigzag: bool = True) -> Tensor:
    """This rank's two chunks of ``whole``, cut along ``dim``, as a tensor of its own.

    Raises:
        ValueError: the sequence cannot be cut into 2N equal chunks; pad it.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    if whole.shape[dim] % (2 * ranks):
        raise ValueError(
            f"{whole.shape[dim]} positions cannot be cut into {2 * ranks} equal chunks: pad them"
        )
    chunks = whole.detach().chunk(2 * ranks, dim)
    return torch.cat([chunks[number] for number in chunks_of(rank, ranks, zigzag)], dim)


def accumulated(q: Tensor) -> torch.dtype:
    """What is added up over the steps of the ring has this type: not bfloat16."""
    return torch.promote_types(q.dtype, torch.float32)


def widened(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """In float32 at least, and each head of keys once for each query head that shares it: grouped queries."""
    shared_by = q.shape[1] // k.shape[1]
    k, v = (tensor.repeat_interleave(shared_by, dim=1) for tensor in (k, v))
    return q.to(accumulated(q)), k.to(accumulated(k)), v.to(accumulated(v))


def scores_of(q: Tensor, k: Tensor, diagonal: bool) -> Tensor:
    """(batch, heads, queries, keys). ``diagonal``: a query sees no key after its own position."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if diagonal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores


def block_forward(q: Tensor, k: Tensor, v: Tensor, diagonal: bool) -> tuple[Tensor, Tensor]:
    """Attention to these keys alone, (batch, heads, queries, width), and its logsumexp, (..., queries).

    The logsumexp says how much weight the block has: log of the sum of exp(score) over its keys. All scores
    of the block are written out, as in ``block_backward``: on a GPU put flash kernels in place of the two.
    """
    q, k, v = widened(q, k, v)
    scores = scores_of(q, k, diagonal)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def merge(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Combine attention to some keys with attention to others, and their logsumexps.

    Only differences of logsumexps are raised to exp, so nothing overflows: an online softmax.
    """
    both = torch.logaddexp(lse, more_lse)
    share, more_share = (lse - both).exp().unsqueeze(-1), (more_lse - both).exp().unsqueeze(-1)
    return out * share + more * more_share, both


def block_backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, diagonal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """What a block adds to the gradients of q, k and v.

    ``out`` and ``lse`` are those of *all* keys, so that the weights are the true ones. ``gradient`` is that
    of the loss with respect to ``out``. As in FlashAttention, the scores are computed a second time.
    """
    gradient, out = gradient.to(accumulated(q)), out.to(accumulated(q))
    wide_q, wide_k, wide_v = widened(q, k, v)
    weights = (scores_of(wide_q, wide_k, diagonal) - lse.unsqueeze(-1)).exp()
    grad_weights = gradient @ wide_v.transpose(-2, -1)
    grad_scores = weights * (grad_weights - (gradient * out).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
    grad_k = grad_scores.transpose(-2, -1) @ wide_q
    grad_v = weights.transpose(-2, -1) @ gradient
    heads = (k.shape[1], -1)  # the query heads that share a head of keys: their gradients are added up
    return grad_scores @ wide_k, grad_k.unflatten(1, heads).sum(2), grad_v.unflatten(1, heads).sum(2)


def blocks(queries: list[int], keys: list[int], width: int) -> list[tuple[slice, slice, bool]]:
    """The blocks to compute: (where in the queries, where in the keys, on the diagonal).

    ``queries`` and ``keys`` are numbers of chunks of ``width`` positions. Keys of a later chunk are left out.
    """
    needed = []
    for i, query in enumerate(queries):
        for j, key in enumerate(keys):
            if key <= query:
                rows = slice(i * width, (i + 1) * width)
                columns = slice(j * width, (j + 1) * width)
                needed.append((rows, columns, key == query))
    return needed


def forward_blocks(
    q: Tensor, queries: list[int], kv: Tensor, keys: list[int], out: Tensor, lse: Tensor
) -> None:
    """Merge attention to these keys and values, (2, batch, heads, length, width), into ``out``, ``lse``."""
    k, v = kv
    for rows, columns, diagonal in blocks(queries, keys, q.shape[-2] // len(queries)):
        of_block = block_forward(q[..., rows, :], k[..., columns, :], v[..., columns, :], diagonal)
        out[..., rows, :], lse[..., rows] = merge(out[..., rows, :], lse[..., rows], *of_block)


def backward_blocks(
    gradient: Tensor,
    q: Tensor,
    queries: list[int],
    kv: Tensor,
    keys: list[int],
    out: Tensor,
    lse: Tensor,
    grad_q: Tensor,
) -> Tensor:
    """Add to ``grad_q``, the gradient of q, and return what these queries add to the gradient of ``kv``."""
    k, v = kv
    grad_kv = torch.zeros_like(kv, dtype=accumulated(kv))
    for rows, columns, diagonal in blocks(queries, keys, q.shape[-2] // len(queries)):
        of_rows = gradient[..., rows, :], q[..., rows, :]
        of_columns = k[..., columns, :], v[..., columns, :]
        of_all = out[..., rows, :], lse[..., rows]
        more_q, more_k, more_v = block_backward(*of_rows, *of_columns, *of_all, diagonal)
        grad_q[..., rows, :] += more_q
        grad_kv[0][..., columns, :] += more_k
        grad_kv[1][..., columns, :] += more_v
    return grad_kv


class Shift:
    """A tensor that is on its way to the next rank of the ring, while that of the rank before arrives."""

    def __init__(self, tensor: Tensor, group: Group) -> None:
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        self.incoming = torch.empty_like(tensor)
        operations = [
            dist.P2POp(dist.isend, tensor, group=group, group_peer=(rank + 1) % ranks),
            dist.P2POp(dist.irecv, self.incoming, group=group, group_peer=(rank - 1) % ranks),
        ]
        self.works = dist.batch_isend_irecv(operations)

    def wait(self) -> Tensor:
        """What the rank before has sent."""
        for work in self.works:
            work.wait()
        return self.incoming


def travelling(kv: Tensor, group: Group) -> Iterator[tuple[int, Tensor]]:
    """In each step: whose keys and values a rank has, and these tensors. They leave before it uses them."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    for step in range(ranks):
        shift = Shift(kv, group) if step < ranks - 1 else None
        yield (rank - step) % ranks, kv
        if shift is not None:
            kv = shift.wait()


class RingAttention(torch.autograd.Function):
    """Causal attention over a sequence of which each rank has a part. Liu et al., 2023, arXiv 2310.01889."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, group: Group, zigzag: bool) -> Tensor:
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        chunks = [chunks_of(holder, ranks, zigzag) for holder in range(ranks)]
        out = torch.zeros_like(q, dtype=accumulated(q))
        lse = q.new_full(q.shape[:-1], -math.inf, dtype=accumulated(q))
        for source, kv in travelling(torch.stack([k, v]), group):
            forward_blocks(q, chunks[rank], kv, chunks[source], out, lse)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.group, ctx.rank, ctx.chunks = group, rank, chunks
        return out

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Keys and values go round once more. Their gradients follow them, and end where the keys belong."""
        q, k, v, out, lse = ctx.saved_tensors
        grad_q = torch.zeros_like(q, dtype=accumulated(q))
        homeward = None  # gradients of keys that belong to other ranks, each rank adds its own
        for source, kv in travelling(torch.stack([k, v]), ctx.group):
            grad_kv = backward_blocks(
                gradient, q, ctx.chunks[ctx.rank], kv, ctx.chunks[source], out, lse, grad_q
            )
            if source == ctx.rank:
                grad_own_kv = grad_kv
            else:
                if homeward is not None:
                    grad_kv += homeward.wait()
                homeward = Shift(grad_kv, ctx.group)
        if homeward is not None:
            grad_own_kv += homeward.wait()
        grad_k, grad_v = grad_own_kv.to(k.dtype)
        return grad_q.to(q.dtype), grad_k, grad_v, None, None


def ring_attention(q: Tensor, k: Tensor, v: Tensor, group: Group = None, zigzag: bool = True) -> Tensor:
    """Causal attention, (batch, heads, length / N, head width) each, of parts cut by ``part_of``.

    ``k`` and ``v`` may have fewer heads than ``q``, if these divide its heads.
    """
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"{q.shape[1]} query heads cannot share {k.shape[1]} key heads: copy some of them")
    return RingAttention.apply(q, k, v, group, zigzag)


def attention_alone(qkv: list[Tensor], gradient: Tensor) -> list[Tensor]:
    """Output and gradients of q, k and v, by torch in one process."""
    leaves = [tensor.clone().requires_grad_() for tensor in qkv]
    out = F.scaled_dot_product_attention(*leaves, is_causal=True, enable_gqa=True)
    out.backward(gradient)
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def attention_on_ring(qkv: list[Tensor], gradient: Tensor) -> list[Tensor]:
    """The same for this rank's part of a zigzag."""
    leaves = [part_of(tensor, -2).requires_grad_() for tensor in qkv]
    out = ring_attention(*leaves)
    out.backward(part_of(gradient, -2))
    return [out.detach(), *(leaf.grad for leaf in leaves)]


NAMES = ("output", "gradient of q", "gradient of k", "gradient of v")


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(rank)  # the ranks begin with different values
    length = 16 * ranks
    sequence = torch.randn(4, 2, 4, length, 8, dtype=torch.float64, device=device)
    dist.broadcast(sequence, src=0)  # one truth for all
    q, k, v, gradient = sequence
    qkv = [q, k[:, :2], v[:, :2]]  # two query heads share a key head
    ours = attention_on_ring(qkv, gradient)
    alone = attention_alone(qkv, gradient)
    for what, part, whole in zip(NAMES, ours, alone, strict=True):
        same = torch.allclose(part, part_of(whole, -2), rtol=0, atol=1e-12)
        assert same, f"rank {rank}: {what} differs"
    if rank == 0:
        print(f"equal to one process: {', '.join(NAMES)}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
