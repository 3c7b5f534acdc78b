"""Ring attention: one sequence lies on all ranks, and keys and values go round, forward and backward.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_20_ring.py
Written by:  notebooks/20_context_parallel.ipynb
"""

import math
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F


def chunks_of(rank: int, ranks: int, zigzag: bool = True, tiles: int = 1) -> list[int]:
    """Which of 2N chunks of the sequence a rank holds, in its order; each may be cut into ``tiles`` more.

    Zigzag: one chunk from the beginning and its counterpart from the end. Otherwise: two neighbours.
    """
    two = (rank, 2 * ranks - 1 - rank) if zigzag else (2 * rank, 2 * rank + 1)
    return [chunk * tiles + tile for chunk in two for tile in range(tiles)]


def part_of(
    whole: torch.Tensor, dim: int, group: dist.ProcessGroup | None = None, zigzag: bool = True
) -> torch.Tensor:
    """This rank's two chunks of ``whole``, cut along ``dim``, as a tensor of its own.

    Raises:
        ValueError: the sequence cannot be cut into 2N equal chunks; pad it.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    if whole.shape[dim] % (2 * ranks):
        raise ValueError(f"{whole.shape[dim]} positions cannot be cut into {2 * ranks} equal chunks")
    chunks = whole.detach().chunk(2 * ranks, dim)
    return torch.cat([chunks[number] for number in chunks_of(rank, ranks, zigzag)], dim)


def scores_of(q: torch.Tensor, k: torch.Tensor, diagonal: bool) -> torch.Tensor:
    """(..., queries, keys). ``diagonal``: of the same positions, so a query sees no key after its own."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if diagonal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores


def block_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, diagonal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention to these keys alone, (..., queries, width), and its logsumexp, (..., queries).

    The logsumexp says how much weight the block has: log of the sum of exp(score) over its keys.
    """
    scores = scores_of(q, k, diagonal)
    lse = scores.logsumexp(-1)
    return (scores - lse.unsqueeze(-1)).exp() @ v, lse


def merge(
    out: torch.Tensor, lse: torch.Tensor, more: torch.Tensor, more_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention to some keys and attention to others become attention to all of these, with its logsumexp.

    Only differences of logsumexps are raised to exp, so nothing overflows: an online softmax.
    """
    both = torch.logaddexp(lse, more_lse)
    out = out * (lse - both).exp().unsqueeze(-1) + more * (more_lse - both).exp().unsqueeze(-1)
    return out, both


def block_backward(
    gradient: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    diagonal: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What a block adds to the gradients of q, k and v.

    ``out`` and ``lse`` are those of *all* keys, so that the weights are the true ones. ``gradient`` is that
    of the loss with respect to ``out``. As in FlashAttention, the scores are computed a second time.
    """
    weights = (scores_of(q, k, diagonal) - lse.unsqueeze(-1)).exp()
    of_weights = gradient @ v.transpose(-2, -1)
    of_scores = weights * (of_weights - (gradient * out).sum(-1, keepdim=True))
    of_scores = of_scores / math.sqrt(q.shape[-1])
    return of_scores @ k, of_scores.transpose(-2, -1) @ q, weights.transpose(-2, -1) @ gradient


def blocks(queries: list[int], keys: list[int], width: int) -> list[tuple[slice, slice, bool]]:
    """The blocks that are to be computed: (where in the queries, where in the keys, on the diagonal).

    ``queries`` and ``keys`` are numbers of chunks of ``width`` positions. Keys of a later chunk are left out.
    """
    found = []
    for i, query in enumerate(queries):
        for j, key in enumerate(keys):
            if key <= query:
                rows = slice(i * width, (i + 1) * width)
                columns = slice(j * width, (j + 1) * width)
                found.append((rows, columns, key == query))
    return found


def forward_blocks(
    q: torch.Tensor,
    kv: torch.Tensor,
    queries: list[int],
    keys: list[int],
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    """Merge attention to these keys and values, (2, batch, heads, length, width), into ``out``, ``lse``."""
    k, v = kv
    for rows, columns, diagonal in blocks(queries, keys, q.shape[-2] // len(queries)):
        more, more_lse = block_forward(q[..., rows, :], k[..., columns, :], v[..., columns, :], diagonal)
        merged, both = merge(out[..., rows, :], lse[..., rows], more, more_lse)
        out[..., rows, :] = merged
        lse[..., rows] = both


def backward_blocks(
    gradient: torch.Tensor,
    q: torch.Tensor,
    kv: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    queries: list[int],
    keys: list[int],
    of_q: torch.Tensor,
) -> torch.Tensor:
    """Add to ``of_q``, the gradient of q, and return what these queries add to the gradient of ``kv``."""
    k, v = kv
    of_kv = torch.zeros_like(kv)
    for rows, columns, diagonal in blocks(queries, keys, q.shape[-2] // len(queries)):
        more_q, more_k, more_v = block_backward(
            gradient[..., rows, :],
            q[..., rows, :],
            k[..., columns, :],
            v[..., columns, :],
            out[..., rows, :],
            lse[..., rows],
            diagonal,
        )
        of_q[..., rows, :] += more_q
        of_kv[0][..., columns, :] += more_k
        of_kv[1][..., columns, :] += more_v
    return of_kv


class Shift:
    """A tensor that is on its way to the next rank of the ring, while that of the rank before arrives."""

    def __init__(self, tensor: torch.Tensor, group: dist.ProcessGroup | None) -> None:
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        self.incoming = torch.empty_like(tensor)
        operations = [
            dist.P2POp(dist.isend, tensor, group=group, group_peer=(rank + 1) % ranks),
            dist.P2POp(dist.irecv, self.incoming, group=group, group_peer=(rank - 1) % ranks),
        ]
        self.works = dist.batch_isend_irecv(operations)

    def wait(self) -> torch.Tensor:
        """What the rank before has sent."""
        for work in self.works:
            work.wait()
        return self.incoming


class RingAttention(torch.autograd.Function):
    """Causal attention over a sequence of which each rank has a part. Liu et al., 2023, arXiv 2310.01889."""

    @staticmethod
    def forward(
        ctx,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        group: dist.ProcessGroup | None,
        zigzag: bool,
        tiles: int,
    ) -> torch.Tensor:
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        chunks = [chunks_of(one, ranks, zigzag, tiles) for one in range(ranks)]
        out = torch.zeros_like(q)
        lse = q.new_full(q.shape[:-1], -math.inf)
        kv = torch.stack([k, v])
        for step in range(ranks):
            last = step == ranks - 1
            if not last:
                shift = Shift(kv, group)  # sent while we compute with it
            source = (rank - step) % ranks  # whose keys and values we have now
            forward_blocks(q, kv, chunks[rank], chunks[source], out, lse)
            if not last:
                kv = shift.wait()
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.group = group
        ctx.chunks = chunks
        return out

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Keys and values go round once more. Their gradients follow them, and end where the keys belong."""
        q, k, v, out, lse = ctx.saved_tensors
        group, chunks = ctx.group, ctx.chunks
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        of_q = torch.zeros_like(q)
        kv = torch.stack([k, v])
        homeward = None  # gradients of keys that belong to other ranks, each rank adds its own
        for step in range(ranks):
            last = step == ranks - 1
            if not last:
                shift = Shift(kv, group)
            source = (rank - step) % ranks
            of_kv = backward_blocks(gradient, q, kv, out, lse, chunks[rank], chunks[source], of_q)
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
        return of_q, of_own_kv[0], of_own_kv[1], None, None, None


def ring_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    zigzag: bool = True,
    tiles: int = 1,
) -> torch.Tensor:
    """Causal attention, (batch, heads, length / N, head width) each, of parts cut by ``part_of``.

    ``tiles``: into how many tiles a chunk is cut; more tiles, less memory for scores.
    """
    return RingAttention.apply(q, k, v, group, zigzag, tiles)


def setup() -> torch.device:
    """Join the group that torchrun describes; return this rank's device: a GPU of its own, else the CPU."""
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu")
    device_id = None
    if torch.accelerator.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device(torch.accelerator.current_accelerator().type, local_rank)
        device_id = device
        torch.accelerator.set_device_index(local_rank)
    dist.init_process_group(dist.get_default_backend_for_device(device), device_id=device_id)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks on {device.type} with {dist.get_backend()}")
    return device


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(rank)  # the ranks begin with different numbers
    sequence = torch.randn(4, 2, 3, 16 * ranks, 8, dtype=torch.float64, device=device)
    dist.broadcast(sequence, src=0)  # one truth for all
    *qkv, gradient = sequence
    alone = [tensor.clone().requires_grad_() for tensor in qkv]
    out = F.scaled_dot_product_attention(*alone, is_causal=True)
    out.backward(gradient)

    for zigzag in (False, True):
        parts = [part_of(tensor, -2, zigzag=zigzag).requires_grad_() for tensor in qkv]
        ring = ring_attention(*parts, zigzag=zigzag)
        ring.backward(part_of(gradient, -2, zigzag=zigzag))
        pairs = {"output": (ring, out)}
        for name, ours, one in zip("qkv", parts, alone, strict=True):
            pairs[f"gradient of {name}"] = (ours.grad, one.grad)
        for name, (ours, one) in pairs.items():
            expected = part_of(one, -2, zigzag=zigzag)
            assert torch.allclose(ours, expected, rtol=0, atol=1e-12), f"rank {rank}: {name} differs"
        if rank == 0:
            print(f"{'zigzag' if zigzag else 'in order'}: equal to one process: {', '.join(pairs)}")
            for one in range(ranks):
                chunks = chunks_of(one, ranks, zigzag)
                work = len(blocks(chunks, list(range(2 * ranks)), 1))
                print(f"  rank {one} holds chunks {chunks} of {2 * ranks} and computes {work} blocks")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
