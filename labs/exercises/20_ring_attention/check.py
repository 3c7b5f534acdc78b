"""Check of exercise 20. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py"""

import math
from types import ModuleType

import torch

from shared.comm.record import CommRecord, record
from shared.lesson_20.flops import MatmulFlops
from shared.runtime.errors import ParityError
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group
from shared.training.parity import assert_equal

TOLERANCE = 1e-12  # float64
BATCH, HEADS, CHUNK, WIDTH = 2, 3, 5, 4
SPARE_BLOCKS = 1  # in the first step, one may compute a masked block together with its neighbours


def scores_of(q: torch.Tensor, k: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """(..., queries, keys), -inf where ``seen`` is False."""
    return (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).masked_fill(~seen, -math.inf)


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """On one process: the output, and the logsumexp of each query."""
    scores = scores_of(q, k, seen)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def causal(q_places: torch.Tensor, k_places: torch.Tensor) -> torch.Tensor:
    return q_places.unsqueeze(-1) >= k_places


def compare(
    what: str,
    found: object,
    expected: torch.Tensor,
    guesses: dict[str, torch.Tensor],
    tolerance: float = TOLERANCE,
) -> None:
    """Raise ``Wrong`` unless they are equal. ``guesses``: {what was wrong: the values that it leads to}."""
    if not isinstance(found, torch.Tensor):
        raise Wrong(f"{what} is {type(found).__name__}, expected a tensor")
    try:
        assert_equal(what, found, expected, tolerance)
    except ParityError as error:
        for guess, wrong in guesses.items():
            if wrong.shape == found.shape and torch.allclose(found, wrong, rtol=0, atol=tolerance):
                raise Wrong(f"{what} {guess}") from None
        raise Wrong(str(error)) from None


def two_of(what: str, result: object) -> tuple:
    if not isinstance(result, tuple) or len(result) != 2:
        raise Wrong(f"{what} returns {type(result).__name__}, expected are an output and a logsumexp")
    return result


def check_merge(answer: ModuleType, group: Group, scale: float, empty: bool = False) -> None:
    """Two parts of the keys, whose scores are up to ``scale``; or no keys at all, and some."""
    generator = torch.Generator().manual_seed(20 + group.rank)
    q, k, v = torch.randn(3, BATCH, HEADS, 2 * CHUNK, WIDTH, dtype=torch.float64, generator=generator)
    q = (q * scale).to(group.device)
    k, v = k.to(group.device), v.to(group.device)
    everything = torch.ones(2 * CHUNK, 2 * CHUNK, dtype=torch.bool, device=group.device)
    first = attention(q, k[..., :CHUNK, :], v[..., :CHUNK, :], everything[:, :CHUNK])
    second = attention(q, k[..., CHUNK:, :], v[..., CHUNK:, :], everything[:, CHUNK:])
    out, lse = attention(q, k, v, everything)
    if empty:
        first = (torch.zeros_like(out), torch.full_like(lse, -math.inf))
        out, lse = second
    given = [*first, *second]
    before = [tensor.clone() for tensor in given]
    merged, both = two_of("merge", answer.merge(*given))
    for name, tensor, copy in zip(("out", "lse", "more", "more_lse"), given, before, strict=True):
        if not torch.equal(tensor, copy):
            raise Wrong(f"merge changes {name}; leave its arguments as they are")
    kind = "with no keys before" if empty else f"of scores up to {q.abs().max().item():.0f}"
    swapped = (first[0] * weight(second[1], lse)) + second[0] * weight(first[1], lse)
    guesses = {
        "is the mean of the two: the part with larger scores has to weigh more": (first[0] + second[0]) / 2,
        "gives each part the weight of the other one": swapped,
    }
    larger = {"is the larger of the two": torch.maximum(before[1], before[3])}
    tolerance = scale * TOLERANCE  # large scores leave fewer digits for their differences
    compare(f"merge {kind}: the output", merged, out, {} if empty else guesses, tolerance)
    compare(f"merge {kind}: the logsumexp", both, lse, {} if empty else larger, tolerance)


def weight(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    return (part - whole).exp().unsqueeze(-1)


def check_messages(log: CommRecord, kv: int, group: Group) -> None:
    """Keys and values go round a ring, N - 1 times."""
    n = group.world_size
    others = {call.op for call in log.calls} - {"send", "recv"}
    if others:
        raise Wrong(f"{', '.join(sorted(others))} is called; keys and values are to go from rank to rank")
    following = (group.rank + 1) % n
    for call in log.of("send"):
        if call.peer != following:
            raise Wrong(f"rank {group.rank} sends to rank {call.peer}, the next one is rank {following}")
    if log.bytes("send") != (n - 1) * kv:
        raise Wrong(
            f"a rank sends {log.bytes('send'):,} bytes; keys and values, N - 1 times, are {(n - 1) * kv:,}"
        )


def check_work(flops: int, q: torch.Tensor, group: Group) -> float:
    """How many blocks were computed: two products of matrices each."""
    n = group.world_size
    blocks = flops / (4 * BATCH * HEADS * CHUNK**2 * q.shape[-1])
    if blocks > 2 * n + 1 + SPARE_BLOCKS:
        raise Wrong(f"rank {group.rank} computes {blocks:g} blocks, {2 * n + 1} are enough")
    return blocks


def verify(answer: ModuleType, group: Group) -> str:
    check_merge(answer, group, scale=1.0)
    check_merge(answer, group, scale=300.0)
    check_merge(answer, group, scale=1.0, empty=True)

    n, rank = group.world_size, group.rank
    length = 2 * n * CHUNK
    generator = torch.Generator().manual_seed(20)
    sequence = torch.randn(3, BATCH, HEADS, length, WIDTH, dtype=torch.float64, generator=generator)
    sequence = sequence.to(group.device)
    places = torch.arange(length, device=group.device)
    chunks = places.chunk(2 * n)
    own = torch.cat([chunks[rank], chunks[2 * n - 1 - rank]])
    whole_q, whole_k, whole_v = sequence
    q, k, v = sequence[..., own, :]
    expected, expected_lse = attention(q, whole_k, whole_v, causal(own, places))

    def guess(seen: torch.Tensor) -> torch.Tensor:
        return attention(q, whole_k, whole_v, seen)[0]

    in_order = places.chunk(n)[rank]
    order = torch.cat([torch.cat([chunks[one], chunks[2 * n - 1 - one]]) for one in range(n)])
    as_if_in_order = attention(q, whole_k[..., order, :], whole_v[..., order, :], causal(in_order, places))[0]
    up_to_own_chunk = causal(own // CHUNK, places // CHUNK)
    own_keys = causal(own, places) & torch.isin(places, own)
    guesses = {
        "takes the two chunks for neighbours: rank r holds chunks r and 2N - 1 - r": as_if_in_order,
        "sees later keys of the query's own chunk: pass diagonal where both are the same chunk": guess(
            up_to_own_chunk
        ),
        "sees all keys, later ones too": guess(torch.ones_like(own_keys)),
        "is attention to this rank's own keys alone": guess(own_keys),
    }
    given = [q.clone(), k.clone(), v.clone()]
    with record() as log, MatmulFlops() as flops:
        result = answer.ring_attention(*given)
    out, lse = two_of("ring_attention", result)
    for name, tensor, before in zip("qkv", given, (q, k, v), strict=True):
        if not torch.equal(tensor, before):
            raise Wrong(f"ring_attention changes {name}; leave its arguments as they are")
    compare("ring_attention: the output", out, expected, guesses if n > 1 else {})
    compare("ring_attention: the logsumexp", lse, expected_lse, {})
    check_messages(log, k.nbytes + v.nbytes, group)
    blocks = check_work(flops.total, q, group)
    return (
        f"equal to attention on one process; {blocks:g} of {(2 * n) ** 2} blocks on each of {n} ranks, "
        f"{log.bytes('send'):,} bytes sent. Well done."
    )


if __name__ == "__main__":
    check_exercise("20_ring_attention", verify)
