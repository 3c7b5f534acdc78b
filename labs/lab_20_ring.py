"""Ring attention: one sequence is divided over all ranks; keys and values go round, forward and backward.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_20_ring.py
Written by:  notebooks/20_context_parallel.ipynb (edit it there)
"""

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU

aten = torch.ops.aten
Group = dist.ProcessGroup | None
Mask = Tensor | None  # (queries, keys), whether both are of one document; None: they all are


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


def repeated(keys: Tensor, q: Tensor) -> Tensor:
    """Grouped queries: each head of keys, (batch, heads, ...), once for each query head that shares it."""
    return keys.repeat_interleave(q.shape[1] // keys.shape[1], dim=1)


def summed(gradient: Tensor, keys: Tensor) -> Tensor:
    """The backward of ``repeated``."""
    return gradient.unflatten(1, (keys.shape[1], -1)).sum(2)


def accumulated(q: Tensor) -> torch.dtype:
    """What is added up over the steps of the ring has this type: not bfloat16."""
    return torch.promote_types(q.dtype, torch.float32)


def by_flash(q: Tensor, same: Mask) -> bool:
    """Whether torch's flash kernel for CPUs computes a block, and never holds all of its scores.

    Otherwise they are written out: in float64, to prove it; under a mask; and on a GPU.
    """
    return q.device.type == "cpu" and q.dtype != torch.float64 and same is None


def scores_of(q: Tensor, k: Tensor, diagonal: bool, same: Mask) -> Tensor:
    """(batch, heads, queries, keys), in float32 at least.

    ``diagonal``: of the same positions, so a query sees no key after its own.
    """
    scores = (q @ k.transpose(-2, -1)).to(accumulated(q)) / math.sqrt(q.shape[-1])
    if diagonal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores if same is None else scores.masked_fill(~same, -math.inf)


def block_forward(q: Tensor, k: Tensor, v: Tensor, diagonal: bool, same: Mask) -> tuple[Tensor, Tensor]:
    """Attention to these keys alone, (batch, heads, queries, width), and its logsumexp, (..., queries).

    The logsumexp says how much weight the block has: log of the sum of exp(score) over its keys.
    """
    k, v = repeated(k, q), repeated(v, q)
    if by_flash(q, same):
        return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, is_causal=diagonal)
    scores = scores_of(q, k, diagonal, same)
    lse = scores.logsumexp(-1)
    finite = lse.masked_fill(lse == -math.inf, 0.0)  # of a query that sees no key of this block
    return (scores - finite.unsqueeze(-1)).exp().to(v.dtype) @ v, lse


def merge(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Combine attention to some keys with attention to others, and their logsumexps.

    Only differences of logsumexps are raised to exp, so nothing overflows: an online softmax.
    """
    both = torch.logaddexp(lse, more_lse)
    share = (lse - both).exp().masked_fill(lse == -math.inf, 0.0).unsqueeze(-1)
    more_share = (more_lse - both).exp().masked_fill(more_lse == -math.inf, 0.0).unsqueeze(-1)
    return out * share + more * more_share, both


def block_backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, diagonal: bool, same: Mask
) -> tuple[Tensor, Tensor, Tensor]:
    """What a block adds to the gradients of q, k and v.

    ``out`` and ``lse`` are those of *all* keys, so that the weights are the true ones. ``gradient`` is that
    of the loss with respect to ``out``. As in FlashAttention, the scores are computed a second time.
    """
    all_k, all_v = repeated(k, q), repeated(v, q)
    if by_flash(q, same):
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
        of_q, of_k, of_v = backward(gradient, q, all_k, all_v, out, lse, 0.0, is_causal=diagonal)
    else:
        weights = (scores_of(q, all_k, diagonal, same) - lse.unsqueeze(-1)).exp()
        of_weights = (gradient @ all_v.transpose(-2, -1)).to(weights.dtype)
        of_scores = weights * (of_weights - (gradient.to(weights.dtype) * out).sum(-1, keepdim=True))
        of_scores = (of_scores / math.sqrt(q.shape[-1])).to(q.dtype)
        of_q, of_k = of_scores @ all_k, of_scores.transpose(-2, -1) @ q
        of_v = weights.to(gradient.dtype).transpose(-2, -1) @ gradient
    return of_q, summed(of_k, k), summed(of_v, v)


def blocks(queries: list[int], keys: list[int], width: int) -> list[tuple[slice, slice, bool]]:
    """The blocks that are to be computed: (where in the queries, where in the keys, on the diagonal).

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


@dataclass(frozen=True)
class Part:
    """Queries, (batch, heads, length, width), of some chunks of a sequence that may hold documents."""

    q: Tensor
    chunks: list[int]
    documents: Tensor | None = None

    def blocks(self, keys: list[int]) -> list[tuple[slice, slice, bool, Mask]]:
        """The blocks with the chunks ``keys``: where, on the diagonal, and who is of one document.

        A block without a common document is left out. Where all are of one, a kernel needs no mask.
        """
        width = self.q.shape[-2] // len(self.chunks)
        needed = []
        for rows, columns, diagonal in blocks(self.chunks, keys, width):
            same = None
            if self.documents is not None:
                by_chunk = self.documents.view(-1, width)
                of_queries = by_chunk[self.chunks].flatten()[rows]
                same = of_queries.unsqueeze(-1) == by_chunk[keys].flatten()[columns]
                if not same.any():
                    continue
                same = None if same.all() else same
            needed.append((rows, columns, diagonal, same))
        return needed


def forward_blocks(part: Part, kv: Tensor, keys: list[int], out: Tensor, lse: Tensor) -> None:
    """Merge attention to these keys and values, (2, batch, heads, length, width), into ``out``, ``lse``."""
    k, v = kv
    for rows, columns, *kind in part.blocks(keys):
        of_block = block_forward(part.q[..., rows, :], k[..., columns, :], v[..., columns, :], *kind)
        out[..., rows, :], lse[..., rows] = merge(out[..., rows, :], lse[..., rows], *of_block)


def backward_blocks(
    gradient: Tensor, part: Part, kv: Tensor, keys: list[int], out: Tensor, lse: Tensor, of_q: Tensor
) -> Tensor:
    """Add to ``of_q``, the gradient of q, and return what these queries add to the gradient of ``kv``."""
    k, v = kv
    of_kv = torch.zeros_like(kv, dtype=accumulated(kv))
    for rows, columns, *kind in part.blocks(keys):
        of_rows = gradient[..., rows, :], part.q[..., rows, :]
        of_columns = k[..., columns, :], v[..., columns, :]
        of_all = out[..., rows, :], lse[..., rows]
        more_q, more_k, more_v = block_backward(*of_rows, *of_columns, *of_all, *kind)
        of_q[..., rows, :] += more_q
        of_kv[0][..., columns, :] += more_k
        of_kv[1][..., columns, :] += more_v
    return of_kv


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


class RingAttention(torch.autograd.Function):
    """Causal attention over a sequence of which each rank has a part. Liu et al., 2023, arXiv 2310.01889."""

    @staticmethod
    def forward(
        ctx, q: Tensor, k: Tensor, v: Tensor, group: Group, zigzag: bool, documents: Tensor | None
    ) -> Tensor:
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        chunks = [chunks_of(holder, ranks, zigzag) for holder in range(ranks)]
        part = Part(q, chunks[rank], documents)
        out = torch.zeros_like(q, dtype=accumulated(q))
        lse = q.new_full(q.shape[:-1], -math.inf, dtype=accumulated(q))
        kv = torch.stack([k, v])
        for step in range(ranks):
            last = step == ranks - 1
            if not last:
                shift = Shift(kv, group)  # sent while we compute with it
            source = (rank - step) % ranks  # whose keys and values we have now
            forward_blocks(part, kv, chunks[source], out, lse)
            if not last:
                kv = shift.wait()
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.group, ctx.chunks, ctx.documents = group, chunks, documents
        return out

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Keys and values go round once more. Their gradients follow them, and end where the keys belong."""
        q, k, v, out, lse = ctx.saved_tensors
        group, chunks = ctx.group, ctx.chunks
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        part = Part(q, chunks[rank], ctx.documents)
        of_q = torch.zeros_like(q, dtype=accumulated(q))
        kv = torch.stack([k, v])
        homeward = None  # gradients of keys that belong to other ranks, each rank adds its own
        for step in range(ranks):
            last = step == ranks - 1
            if not last:
                shift = Shift(kv, group)
            source = (rank - step) % ranks
            of_kv = backward_blocks(gradient, part, kv, chunks[source], out, lse, of_q)
            if step == 0:
                of_own_kv = of_kv
            else:
                if homeward is not None:
                    of_kv += homeward.wait()
                homeward = Shift(of_kv, group)
            if not last:
                kv = shift.wait()
        if homeward is not None:
            of_own_kv += homeward.wait()
        of_k, of_v = of_own_kv.to(k.dtype)
        return of_q.to(q.dtype), of_k, of_v, None, None, None


def ring_attention(
    q: Tensor, k: Tensor, v: Tensor, group: Group = None, zigzag: bool = True, documents: Tensor | None = None
) -> Tensor:
    """Causal attention, (batch, heads, length / N, head width) each, of parts cut by ``part_of``.

    ``k`` and ``v`` may have fewer heads than ``q``, if these divide its heads. ``documents``: (length,), the
    number of the document at each position of the whole sequence; no query sees another document.
    """
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"{q.shape[1]} query heads cannot share {k.shape[1]} key heads: copy some of them")
    return RingAttention.apply(q, k, v, group, zigzag, documents)


def attention_alone(qkv: list[Tensor], gradient: Tensor, documents: Tensor | None = None) -> list[Tensor]:
    """Output and gradients of q, k and v, by torch in one process."""
    leaves = [tensor.clone().requires_grad_() for tensor in qkv]
    seen = torch.ones(2 * gradient.shape[-2:-1], dtype=torch.bool, device=gradient.device).tril()
    if documents is not None:
        seen &= documents.unsqueeze(-1) == documents
    out = F.scaled_dot_product_attention(*leaves, attn_mask=seen, enable_gqa=True)
    out.backward(gradient)
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def attention_on_ring(qkv: list[Tensor], gradient: Tensor, documents: Tensor | None = None) -> list[Tensor]:
    """The same for this rank's part of a zigzag."""
    leaves = [part_of(tensor, -2).requires_grad_() for tensor in qkv]
    out = ring_attention(*leaves, documents=documents)
    out.backward(part_of(gradient, -2))
    return [out.detach(), *(leaf.grad for leaf in leaves)]


NAMES = ("output", "gradient of q", "gradient of k", "gradient of v")


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(rank)  # the ranks begin with different numbers
    length = 16 * ranks
    sequence = torch.randn(4, 2, 4, length, 8, dtype=torch.float64, device=device)
    dist.broadcast(sequence, src=0)  # one truth for all
    q, k, v, gradient = sequence
    qkv = [q, k[:, :2], v[:, :2]]  # two query heads share a key head
    packed = torch.arange(length, device=device) // (5 * ranks)  # no document ends where a chunk does

    for name, documents in {"one document": None, "packed documents": packed}.items():
        ours = attention_on_ring(qkv, gradient, documents)
        alone = attention_alone(qkv, gradient, documents)
        for what, part, whole in zip(NAMES, ours, alone, strict=True):
            same = torch.allclose(part, part_of(whole, -2), rtol=0, atol=1e-12)
            assert same, f"rank {rank}: {name}: {what} differs"
        if rank == 0:
            print(f"{name}: equal to one process: {', '.join(NAMES)}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
