"""Ring, gathered keys and values, Ulysses, and two of them: the same attention; work, calls and bytes.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_20/proof_ways.py
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

from shared.comm.broadcast import broadcast_from_rank_0
from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import gather_on_rank_0, print_on_rank_0
from shared.runtime.run import run
from shared.training.flops import MatmulFlops
from shared.training.gpt import causal_attention
from shared.training.parity import assert_equal

import lab_20_ring as ring
from lab_20_ring import chunks_of, part_of, ring_attention

FORWARD = 2  # products of matrices in a block: queries by keys, weights by values
BACKWARD = 5  # the scores again, and four gradients
COMPUTE, WAIT = "compute", "wait"


@dataclass(frozen=True)
class Config:
    batch: int = 2
    chunk: int = 8  # positions; the sequence has 2N chunks
    head_width: int = 8
    long_chunk: int = 64  # in bfloat16
    worse: float = 1.3  # times the error of torch in one process, at most
    tolerance: float = 1e-12


class BlockAttention(torch.autograd.Function):
    """Causal attention of some chunks of queries to some chunks of keys, all of which are on this rank."""

    @staticmethod
    def forward(ctx, q: torch.Tensor, kv: torch.Tensor, queries: list[int], keys: list[int]) -> torch.Tensor:
        """``q`` (batch, heads, queries, width), ``kv`` (2, batch, heads, keys, width)."""
        out = torch.zeros_like(q)
        lse = q.new_full(q.shape[:-1], -torch.inf)
        ring.forward_blocks(q, queries, kv, keys, out, lse)
        ctx.save_for_backward(q, kv, out, lse)
        ctx.chunks = queries, keys
        return out

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, kv, out, lse = ctx.saved_tensors
        grad_q = torch.zeros_like(q)
        queries, keys = ctx.chunks
        grad_kv = ring.backward_blocks(gradient, q, queries, kv, keys, out, lse, grad_q)
        return grad_q, grad_kv, None, None


class GatherSequence(torch.autograd.Function):
    """(..., length / N, width) to (..., length, width), the parts in the order of the ranks.

    Forward all-gather. Backward reduce-scatter: all ranks have used this rank's keys.
    """

    @staticmethod
    def forward(ctx, part: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
        ctx.group = group
        ranks = dist.get_world_size(group)
        parts = part.new_empty(ranks * len(part), *part.shape[1:])  # joined along the first dimension
        dist.all_gather_into_tensor(parts, part.contiguous(), group=group)
        return torch.cat(parts.chunk(ranks), dim=-2)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        parts = gradient.chunk(dist.get_world_size(ctx.group), dim=-2)
        own = torch.empty_like(parts[0], memory_format=torch.contiguous_format)
        dist.reduce_scatter_tensor(own, torch.cat(parts), group=ctx.group)
        return own, None


def gathered_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    zigzag: bool = True,
) -> torch.Tensor:
    """As ``ring_attention``, but each rank gathers all keys and values first. Llama 3, arXiv 2407.21783."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    kv = GatherSequence.apply(torch.stack([k, v]), group)
    own = chunks_of(rank, ranks, zigzag)
    of_all = [chunk for holder in range(ranks) for chunk in chunks_of(holder, ranks, zigzag)]
    return BlockAttention.apply(q, kv, own, of_all)


class AllToAll(torch.autograd.Function):
    """(N, ...): part i goes to rank i, and what rank i has for us becomes part i. Backward is the same."""

    @staticmethod
    def forward(ctx, parts: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
        ctx.group = group
        received = torch.empty_like(parts)
        dist.all_to_all_single(received, parts, group=group)
        return received

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        back = torch.empty_like(gradient, memory_format=torch.contiguous_format)
        dist.all_to_all_single(back, gradient.contiguous(), group=ctx.group)
        return back, None


def exchange(x: torch.Tensor, cut: int, join: int, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Cut ``x`` along one dimension, a part for each rank, and join what they send along another one."""
    parts = torch.stack(x.chunk(dist.get_world_size(group), dim=cut))
    return torch.cat(list(AllToAll.apply(parts, group)), dim=join)


def ulysses_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Attention to the whole sequence by 1/N of the heads. Jacobs et al., 2023, arXiv 2309.14509.

    The parts of the sequence are placed on the ranks in order: cut them by ``part_of(..., zigzag=False)``.

    Raises:
        CourseError: N does not divide the heads.
    """
    ranks = dist.get_world_size(group)
    if q.shape[-3] % ranks:
        raise CourseError(f"{q.shape[-3]} heads cannot be divided by {ranks} ranks")
    q, k, v = exchange(torch.stack([q, k, v]), cut=-3, join=-2, group=group)
    chunks = list(range(2 * ranks))
    out = BlockAttention.apply(q, torch.stack([k, v]), chunks, chunks)
    return exchange(out, cut=-2, join=-3, group=group)


def ulysses_ring_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, inner: dist.ProcessGroup, outer: dist.ProcessGroup
) -> torch.Tensor:
    """In two dimensions: heads are divided within ``inner``, a server, and a ring connects the servers.

    The ranks of a server hold consecutive pieces of its two chunks of the zigzag. Fang and Zhao, 2024,
    arXiv 2405.07719.
    """
    q, k, v = exchange(torch.stack([q, k, v]), cut=-3, join=-2, group=inner)
    out = ring_attention(q, k, v, outer)
    return exchange(out, cut=-2, join=-3, group=inner)


@dataclass(frozen=True)
class Way:
    """How ranks that each have a part of the sequence attend to all of it."""

    attend: Callable  # (q, k, v, group), each (batch, heads, length / N, head width), to the same
    zigzag: bool


WAYS = {
    "ring, in order": Way(partial(ring_attention, zigzag=False), False),
    "ring": Way(ring_attention, True),
    "gather": Way(gathered_attention, True),
    "Ulysses": Way(ulysses_attention, False),
}


def expected_calls(way: str, n: int, part: int) -> dict[str, dict]:
    """{pass: calls, and bytes that a rank sends}. ``part``: the bytes of a rank's keys, C in the lesson."""
    if way.startswith("ring"):
        forward = {"calls": {"send": n - 1, "recv": n - 1}, "bytes": 2 * (n - 1) * part}
        backward = {"calls": {"send": 2 * (n - 1), "recv": 2 * (n - 1)}, "bytes": 4 * (n - 1) * part}
    elif way == "gather":
        forward = {"calls": {"all_gather": 1}, "bytes": 2 * (n - 1) * part}
        backward = {"calls": {"reduce_scatter": 1}, "bytes": 2 * (n - 1) * part}
    else:
        forward = {"calls": {"all_to_all": 2}, "bytes": 4 * (n - 1) * part // n}
        backward = forward
    return {"forward": forward, "backward": backward}


def observed(function: Callable, *args) -> tuple[torch.Tensor | None, dict]:
    """What ``function`` returns, and its calls, the bytes that this rank sends, floating-point operations."""
    with record() as log, MatmulFlops() as flops:
        result = function(*args)
    seen = {"calls": dict(log.counts()), "bytes": round(log.by_rule()), "flops": flops.total}
    return result, seen


def watch_ring(
    way: Way, parts: list[torch.Tensor], gradient: torch.Tensor, one_block: int
) -> tuple[list[float], list[str]]:
    """Blocks that this rank computes in each step, by counted operations, and in which order it does what."""
    steps = []
    forward_blocks, backward_blocks, wait = ring.forward_blocks, ring.backward_blocks, ring.Shift.wait

    def forward(*args) -> None:
        log.mark(COMPUTE)
        _, seen = observed(forward_blocks, *args)
        steps.append(seen["flops"] / one_block)

    def backward(*args) -> torch.Tensor:
        log.mark(COMPUTE)
        return backward_blocks(*args)

    def marked_wait(shift: ring.Shift) -> torch.Tensor:
        log.mark(WAIT)
        return wait(shift)

    ring.forward_blocks, ring.backward_blocks, ring.Shift.wait = forward, backward, marked_wait
    with record() as log:
        way.attend(*parts).backward(gradient)
    ring.forward_blocks, ring.backward_blocks, ring.Shift.wait = forward_blocks, backward_blocks, wait
    return steps, log.order()


def expected_order(ranks: int) -> list[str]:
    """Keys leave before a rank computes with them, and it waits for the next ones only after that."""
    message = ["send", "recv"]
    forward = [*message, COMPUTE, WAIT] * (ranks - 1) + [COMPUTE]
    backward = []
    for step in range(ranks):
        last = step == ranks - 1
        if not last:
            backward += message
        backward.append(COMPUTE)
        if step > 1:
            backward.append(WAIT)  # for gradients of the keys that it has just computed with
        if step > 0:
            backward += message
        if not last:
            backward.append(WAIT)
    return [*forward, *backward, WAIT]


def expected_steps(way: Way, rank: int, ranks: int) -> list[int]:
    """Blocks in each step of the ring. In the first one each rank meets its own keys: 3 blocks of 4."""
    later = []
    for step in range(1, ranks):
        all_of_them = (rank - step) % ranks < rank  # in order: these keys stand before all of our queries
        later.append(2 if way.zigzag else 4 * all_of_them)
    return [3, *later]


def check_work(name: str, found: dict, steps: list[float], one_block: int, group: Group) -> float:
    """Zigzag, or 1/N of the heads: the same on all ranks, in each step. In order: the later, the more."""
    way, n = WAYS[name], group.world_size
    work = found["forward"]["flops"] / one_block
    expected = 4 * group.rank + 3 if name == "ring, in order" else 2 * n + 1
    if work != expected:
        raise CourseError(f"{name}: {work:g} blocks, expected {expected}")
    if found["backward"]["flops"] * FORWARD != found["forward"]["flops"] * BACKWARD:
        raise CourseError(f"{name}: backward computes something else than forward")
    if steps and steps != expected_steps(way, group.rank, n):
        raise CourseError(
            f"{name}: in its steps {steps} blocks, expected {expected_steps(way, group.rank, n)}"
        )
    return work


def compare(name: str, group: Group, cfg: Config) -> dict:
    """One way against attention on one process; its work, calls and bytes against the formulas."""
    way, n = WAYS[name], group.world_size
    heads = n
    sequence = torch.randn(4, cfg.batch, heads, 2 * n * cfg.chunk, cfg.head_width, dtype=torch.float64)
    sequence = sequence.to(group.device)
    broadcast_from_rank_0([sequence])
    *qkv, gradient = sequence
    alone = [tensor.clone().requires_grad_() for tensor in qkv]
    out_alone = causal_attention(*alone)
    out_alone.backward(gradient)

    parts = [part_of(tensor, -2, zigzag=way.zigzag).requires_grad_() for tensor in qkv]
    passes = {}
    out, passes["forward"] = observed(way.attend, *parts)
    _, passes["backward"] = observed(out.backward, part_of(gradient, -2, zigzag=way.zigzag))
    assert_equal(f"{name}: output", out, part_of(out_alone, -2, zigzag=way.zigzag), cfg.tolerance)
    for letter, part, whole in zip("qkv", parts, alone, strict=True):
        expected = part_of(whole.grad, -2, zigzag=way.zigzag)
        assert_equal(f"{name}: gradient of {letter}", part.grad, expected, cfg.tolerance)

    for which, expected in expected_calls(name, n, parts[1].nbytes).items():
        told = {kind: passes[which][kind] for kind in expected}
        if told != expected:
            raise CourseError(f"{name}, {which}: {told}, expected {expected}")
    one_block = FORWARD * 2 * cfg.batch * heads * cfg.chunk**2 * cfg.head_width
    steps = []
    if name.startswith("ring"):
        steps, order = watch_ring(way, parts, part_of(gradient, -2, zigzag=way.zigzag), one_block)
        if order != expected_order(n):
            raise CourseError(f"{name}: does {' '.join(order)}, expected {' '.join(expected_order(n))}")
    work = check_work(name, passes, steps, one_block, group)
    return {"passes": passes, "blocks": work, "steps": steps, "part": parts[1].nbytes}


def with_checkpointing(name: str, group: Group, cfg: Config) -> int:
    """Bytes that a rank sends for attention in a block that is computed again in the backward pass."""
    way, n = WAYS[name], group.world_size
    shape = (3, cfg.batch, n, 2 * cfg.chunk, cfg.head_width)
    q, k, v = torch.randn(shape, dtype=torch.float64, device=group.device)
    gain = torch.ones(cfg.head_width, dtype=torch.float64, device=group.device, requires_grad=True)

    def block(q: torch.Tensor) -> torch.Tensor:
        return way.attend(q, k, v) * gain  # as the next layer does, it keeps what attention returned

    k.requires_grad_()
    v.requires_grad_()
    with record() as log:
        checkpoint(block, q.requires_grad_(), use_reentrant=False).sum().backward()
    passes = expected_calls(name, n, k.nbytes)
    expected = 2 * passes["forward"]["bytes"] + passes["backward"]["bytes"]
    sent = round(log.by_rule())
    if sent != expected:
        raise CourseError(f"{name}, checkpointed: a rank sends {sent:,} bytes, expected {expected:,}")
    return sent


def two_dimensions(group: Group, cfg: Config) -> None:
    """Ulysses within servers of two ranks, a ring between them: attention of one process, counted bytes."""
    inner_size = 1 if group.world_size % 2 else 2
    names = ("ring", "ulysses")
    mesh = init_device_mesh(
        group.device.type, (group.world_size // inner_size, inner_size), mesh_dim_names=names
    )
    outer, inner = (mesh.get_group(name) for name in names)
    length = 4 * group.world_size * cfg.chunk
    sequence = torch.randn(4, cfg.batch, 2 * inner_size, length, cfg.head_width, dtype=torch.float64)
    sequence = sequence.to(group.device)
    broadcast_from_rank_0([sequence])
    *qkv, gradient = sequence

    def own(whole: torch.Tensor) -> torch.Tensor:
        of_server = part_of(whole, -2, outer)
        return of_server.chunk(inner_size, -2)[dist.get_rank(inner)].clone()

    parts = [own(tensor).requires_grad_() for tensor in qkv]
    out, forward = observed(ulysses_ring_attention, *parts, inner, outer)
    _, backward = observed(out.backward, own(gradient))
    found = [out, *(part.grad for part in parts)]
    for what, ours, whole in zip(ring.NAMES, found, ring.attention_alone(qkv, gradient), strict=True):
        assert_equal(f"Ulysses x ring: {what}", ours, own(whole), cfg.tolerance)
    part, m = parts[1].nbytes, mesh.size(0)
    exchanged = 4 * (inner_size - 1) * part // inner_size
    sent = forward["bytes"], backward["bytes"]
    expected = exchanged + 2 * (m - 1) * part, exchanged + 4 * (m - 1) * part
    if sent != expected:
        raise CourseError(f"Ulysses x ring: a rank sends {sent} bytes, expected {expected}")
    print_on_rank_0(
        f"Ulysses {inner_size} x ring {m}: equal to one process, output and gradients of q, k and v; "
        f"a rank sends {sum(expected) / part:g} C"
    )


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative, over all numbers."""
    return ((found.double() - exact).norm() / exact.norm()).item()


def in_bfloat16(group: Group, cfg: Config) -> dict[str, tuple[float, float]]:
    """{result: relative error of the ring, and of torch in one process}, for numbers in bfloat16."""
    length = 2 * group.world_size * cfg.long_chunk
    sequence = torch.randn(4, 1, 4, length, 16, dtype=torch.bfloat16, device=group.device)
    broadcast_from_rank_0([sequence])
    *qkv, gradient = sequence
    exact = ring.attention_alone([tensor.double() for tensor in qkv], gradient.double())
    by_torch = ring.attention_alone(qkv, gradient)
    errors = {}
    with record() as log:
        on_ring = ring.attention_on_ring(qkv, gradient)
    results = zip(ring.NAMES, on_ring, by_torch, exact, strict=True)
    for what, ours, theirs, truth in results:
        own = part_of(truth, -2)
        errors[what] = error(ours, own), error(part_of(theirs, -2), own)
        if errors[what][0] > cfg.worse * errors[what][1]:
            raise CourseError(f"bfloat16: {what} of the ring is off by {errors[what][0]:.4f}, torch's less")
    part = part_of(qkv[1], -2).nbytes
    # Backward: keys and values once more, and their gradients in float32, twice as long.
    expected = (2 + 2 + 4) * (group.world_size - 1) * part
    if round(log.by_rule()) != expected:
        raise CourseError(f"bfloat16: a rank sends {log.by_rule():,.0f} bytes, expected {expected:,}")
    print_on_rank_0(f"bfloat16: the ring sends {expected / part:g} C, because gradients are float32")
    return errors


def tell(name: str, ranks: list[dict]) -> None:
    """What all ranks found."""
    first = ranks[0]
    calls = {which: in_words(seen["calls"]) for which, seen in first["passes"].items()}
    sent = sum(seen["bytes"] for seen in first["passes"].values())
    print(f"{name}: equal to one process, output and gradients of q, k and v")
    print(f"  forward: {calls['forward']}; backward: {calls['backward']}; a rank sends {sent:,} bytes")
    print(f"  blocks that rank 0, 1, ... computes: {', '.join(format(row['blocks'], 'g') for row in ranks)}")
    if first["steps"]:
        most = [format(max(step), "g") for step in zip(*(row["steps"] for row in ranks), strict=True)]
        print(f"  blocks of the busiest rank, step by step: {', '.join(most)}")


def in_words(calls: dict[str, int]) -> str:
    return " + ".join(f"{count} {kind}" for kind, count in sorted(calls.items()))


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        for name in WAYS:
            found = compare(name, group, cfg)
            ranks = gather_on_rank_0(found)
            if ranks:
                tell(name, ranks)
        part = found["part"]
        print_on_rank_0(f"the keys of one rank have {part:,} bytes")
        for name in ("ring", "gather", "Ulysses"):
            sent = with_checkpointing(name, group, cfg)
            print_on_rank_0(f"{name}, checkpointed: a rank sends {sent:,} bytes, {sent / part:g} C")
        two_dimensions(group, cfg)
        for what, (ours, theirs) in in_bfloat16(group, cfg).items():
            print_on_rank_0(f"bfloat16: {what} is off by {ours:.3f}; torch's in one process by {theirs:.3f}")


if __name__ == "__main__":
    run(main, Config())
