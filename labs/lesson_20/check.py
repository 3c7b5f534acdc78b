"""Check of exercise 20. Run it: torchrun --standalone --nproc-per-node=3 CHECK.py"""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from types import ModuleType
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from shared.comm.late import LateWork
from shared.comm.record import CommRecord, record
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group
from shared.training.flops import MatmulFlops
from shared.training.judging import compare

TOLERANCE = 1e-12  # float64
BATCH, HEADS, CHUNK, WIDTH = 2, 3, 5, 4
Tensors = tuple[torch.Tensor, ...]


class Arriving(LateWork):
    """The work of a tensor that is being received; it knows whether this rank computed until its wait."""

    def __init__(
        self, work: dist.Work, result: torch.Tensor, tensor: torch.Tensor, flops: MatmulFlops
    ) -> None:
        super().__init__(work, result, tensor)
        self.flops = flops
        self.at_launch = flops.total
        self.at_wait = flops.total

    def wait(self, *arguments: timedelta) -> bool:
        if not self.delivered:
            self.at_wait = self.flops.total
        return super().wait(*arguments)

    @property
    def idle(self) -> bool:
        return self.at_wait == self.at_launch


class Sent:
    """The work of a tensor that is being sent; it must not change before it is waited for."""

    def __init__(self, work: dist.Work, tensor: torch.Tensor) -> None:
        self.work = work
        self.tensor = tensor
        self.before = tensor.clone()
        self.delivered = False

    def wait(self, *arguments: object) -> bool:
        self.delivered = True
        if not torch.equal(self.tensor, self.before):
            raise Wrong("a tensor changes while it is being sent: wait first")
        return self.work.wait(*arguments)


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two contiguous tensors share memory."""
    begins = max(one.data_ptr(), other.data_ptr())
    return begins < min(one.data_ptr() + one.nbytes, other.data_ptr() + other.nbytes)


@contextmanager
def late_messages() -> Iterator[list[Arriving | Sent]]:
    """What is received arrives only where it is waited for, as over a slow network. Until then it is NaN.

    Over nccl, where a batch has one work, messages are as always.
    """
    launched: list[Arriving | Sent] = []

    def isend(tensor, *arguments, **options):
        for other in launched:
            if isinstance(other, Arriving) and not other.delivered and overlap(other.tensor, tensor):
                raise Wrong("a rank sends what it is still receiving: is there a wait?")
        launched.append(Sent(real["isend"](tensor, *arguments, **options), tensor))
        return launched[-1]

    def irecv(tensor, *arguments, **options):
        result = torch.empty_like(tensor)
        tensor.detach().fill_(math.nan)
        launched.append(Arriving(real["irecv"](result, *arguments, **options), result, tensor, flops))
        return launched[-1]

    real = {"isend": dist.isend, "irecv": dist.irecv}
    with ExitStack() as patches:
        flops = patches.enter_context(MatmulFlops())
        if dist.get_backend() == "gloo":
            for module in (dist, distributed_c10d):  # P2POp compares with the latter
                patches.enter_context(patch.multiple(module, isend=isend, irecv=irecv))
        yield launched


def scores_of(q: torch.Tensor, k: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """(..., queries, keys), -inf where ``seen`` is False."""
    return (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).masked_fill(~seen, -math.inf)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> Tensors:
    """On one process: the output, and the logsumexp of each query."""
    scores = scores_of(q, k, seen)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def causal(of_queries: torch.Tensor, of_keys: torch.Tensor) -> torch.Tensor:
    """Positions of queries and keys to (queries, keys): which are seen."""
    return of_queries.unsqueeze(-1) >= of_keys


def compare_arrived(
    what: str, found: object, expected: torch.Tensor, guesses: dict[str, torch.Tensor]
) -> None:
    """The same for what was made of messages, which are NaN as long as nobody waits for them."""
    if isinstance(found, torch.Tensor) and found.isnan().any():
        raise Wrong(f"{what} has NaN: is something used before the wait for it?")
    compare(what, found, expected, guesses, TOLERANCE)


def tensors_of(what: str, result: object, names: tuple[str, ...]) -> tuple:
    if not isinstance(result, tuple) or len(result) != len(names):
        raise Wrong(f"{what} returns {type(result).__name__}, expected are {', '.join(names)}")
    return result


def check_unchanged(what: str, given: dict[str, torch.Tensor], before: list[torch.Tensor]) -> None:
    for (name, tensor), copy in zip(given.items(), before, strict=True):
        if not torch.equal(tensor, copy):
            raise Wrong(f"{what} changes {name}; leave its arguments as they are")


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
    given = dict(zip(("out", "lse", "more", "more_lse"), (*first, *second), strict=True))
    before = [tensor.clone() for tensor in given.values()]
    merged, both = tensors_of("merge", answer.merge(*given.values()), ("an output", "a logsumexp"))
    check_unchanged("merge", given, before)
    kind = "with no keys before" if empty else f"of scores up to {q.abs().max().item():.0f}"
    mean = (first[0] + second[0]) / 2
    larger = torch.maximum(before[1], before[3])
    guesses = {} if empty else {"is the mean of the two: the part with larger scores has to weigh more": mean}
    of_lse = {} if empty else {"is the larger of the two": larger}
    tolerance = scale * TOLERANCE  # large scores leave fewer digits for their differences
    compare(f"merge {kind}: the output", merged, out, guesses, tolerance)
    compare(f"merge {kind}: the logsumexp", both, lse, of_lse, tolerance)


def check_messages(what: str, log: CommRecord, launched: list, most: int) -> None:
    """They go from rank to rank, ``most`` bytes, and each is waited for."""
    others = {call.op for call in log.calls} - {"send", "recv"}
    if others:
        raise Wrong(f"{what}: {', '.join(sorted(others))} is called; tensors are to go from rank to rank")
    forgotten = sum(not work.delivered for work in launched)
    if forgotten:
        raise Wrong(f"{what}: {forgotten} of {len(launched)} sends and receives are never waited for")
    if log.bytes("send") > most:
        raise Wrong(f"{what}: a rank sends {log.bytes('send'):,} bytes, {most:,} are enough")


class Sequence:
    """The whole sequence, on each rank, and what is where."""

    def __init__(self, group: Group) -> None:
        self.rank, self.ranks = group.rank, group.world_size
        length = 2 * self.ranks * CHUNK
        generator = torch.Generator().manual_seed(20)
        sequence = torch.randn(4, BATCH, HEADS, length, WIDTH, dtype=torch.float64, generator=generator)
        self.q, self.k, self.v, self.gradient = sequence.to(group.device)
        self.positions = torch.arange(length, device=group.device)
        self.everything = causal(self.positions, self.positions)
        self.out, self.lse = attention(self.q, self.k, self.v, self.everything)

    def held_by(self, rank: int) -> torch.Tensor:
        chunks = self.positions.chunk(2 * self.ranks)
        return torch.cat([chunks[rank % self.ranks], chunks[2 * self.ranks - 1 - rank % self.ranks]])

    def by_direction(self, own: torch.Tensor) -> Tensors:
        """Output and logsumexp, if what arrives in step s is taken for the keys of rank + s."""
        steps = range(self.ranks)
        arrived = torch.cat([self.held_by(self.rank - step) for step in steps])
        taken_for = torch.cat([self.held_by(self.rank + step) for step in steps])
        k, v = self.k[..., arrived, :], self.v[..., arrived, :]
        return attention(self.q[..., own, :], k, v, causal(own, taken_for))

    def are_of_one_chunk(self, own: torch.Tensor, lse: torch.Tensor) -> bool:
        """Whether each number in ``lse`` is the logsumexp of a query's scores with one chunk of keys."""
        matches = torch.zeros_like(lse, dtype=torch.bool)
        for columns in self.positions.chunk(2 * self.ranks):
            scores = scores_of(self.q[..., own, :], self.k[..., columns, :], causal(own, columns))
            matches |= torch.isclose(lse, scores.logsumexp(-1), rtol=0, atol=TOLERANCE)
        return bool(matches.all())

    def gradients(self, queries: torch.Tensor, keys: torch.Tensor, lse: torch.Tensor) -> Tensors:
        """What the queries at these positions and these keys give to the gradients of q, k and v."""
        q, k, v = self.q[..., queries, :], self.k[..., keys, :], self.v[..., keys, :]
        gradient, out = self.gradient[..., queries, :], self.out[..., queries, :]
        weights = (scores_of(q, k, causal(queries, keys)) - lse.unsqueeze(-1)).exp()
        grad_scores = gradient @ v.transpose(-2, -1) - (gradient * out).sum(-1, keepdim=True)
        grad_scores = weights * grad_scores / math.sqrt(WIDTH)
        return grad_scores @ k, grad_scores.transpose(-2, -1) @ q, weights.transpose(-2, -1) @ gradient


def check_forward(answer: ModuleType, group: Group, whole: Sequence) -> int:
    """The bytes that were sent."""
    own = whole.held_by(group.rank)
    given = {name: getattr(whole, name)[..., own, :] for name in "qkv"}
    before = [tensor.clone() for tensor in given.values()]
    with record() as log, late_messages() as launched:
        result = answer.ring_attention(*given.values())
    out, lse = tensors_of("ring_attention", result, ("an output", "a logsumexp"))
    check_unchanged("ring_attention", given, before)
    most = (whole.ranks - 1) * (given["k"].nbytes + given["v"].nbytes)
    check_messages("ring_attention", log, launched, most)
    wrong_source = whole.by_direction(own)
    source = "takes what arrives for another rank's keys: in step s they are those of rank - s"
    of_lse = {source: wrong_source[1], "stays -inf: keep what merge returns": torch.full_like(lse, -math.inf)}
    if whole.are_of_one_chunk(own, lse):
        of_lse["is that of one block alone: keep what merge returns"] = lse
    compare_arrived("ring_attention: the logsumexp", lse, whole.lse[..., own], of_lse)
    compare_arrived("ring_attention: the output", out, whole.out[..., own, :], {source: wrong_source[0]})
    if any(work.idle for work in launched if isinstance(work, Arriving)):
        raise Wrong(
            "ring_attention: a rank computes nothing while keys are on their way: wait after computing"
        )
    return log.bytes("send")


def check_weights(answer: ModuleType, whole: Sequence) -> None:
    """Of the last chunk of queries, to the first chunk of keys and to its own."""
    rows = whole.positions[-CHUNK:]
    q, lse = whole.q[..., rows, :], whole.lse[..., rows]
    for columns in (whole.positions[:CHUNK], rows):
        k = whole.k[..., columns, :]
        scores = scores_of(q, k, causal(rows, columns))
        weights = answer.weights_of(q, k, lse, columns is rows)
        guesses = {"add up to 1 over one block: the logsumexp is that of all keys": scores.softmax(-1)}
        compare("weights_of: the weights", weights, (scores - lse.unsqueeze(-1)).exp(), guesses, TOLERANCE)


def check_backward(answer: ModuleType, group: Group, whole: Sequence) -> int:
    """The bytes that were sent."""
    rank, own = group.rank, whole.held_by(group.rank)
    given = {name: getattr(whole, name)[..., own, :] for name in ("gradient", "q", "k", "v", "out")}
    given["lse"] = whole.lse[..., own]
    before = [tensor.clone() for tensor in given.values()]
    with record() as log, late_messages() as launched:
        result = answer.ring_backward(*given.values())
    gradients = tensors_of("ring_backward", result, ("the gradients of q", "k", "v"))
    check_unchanged("ring_backward", given, before)
    most = 2 * whole.ranks * (given["k"].nbytes + given["v"].nbytes)
    check_messages("ring_backward", log, launched, most)
    expected = whole.gradients(whole.positions, whole.positions, whole.lse)
    shares = [
        whole.gradients(own, whole.held_by(source), whole.lse[..., own]) for source in range(whole.ranks)
    ]
    for which, name in enumerate("qkv"):
        guesses = {}
        if name != "q":
            guesses = {
                "lacks what other ranks' queries give: it has to travel with the keys": shares[rank][which],
                "is what our queries give to the keys of all ranks: it has to travel with the keys": sum(
                    share[which] for share in shares
                ),
            }
            for other in range(whole.ranks):
                if other != rank:
                    theirs = expected[which][..., whole.held_by(other), :]
                    guesses[f"is that of rank {other}'s keys: it has not come home"] = theirs
        what = f"ring_backward: the gradient of {name}"
        compare_arrived(what, gradients[which], expected[which][..., own, :], guesses)
    return log.bytes("send")


def verify(answer: ModuleType, group: Group) -> str:
    if group.world_size < 2:
        raise Wrong("one rank has no next one: start the check with --nproc-per-node=2 or more")
    check_merge(answer, group, scale=1.0)
    check_merge(answer, group, scale=300.0)
    check_merge(answer, group, scale=1.0, empty=True)
    whole = Sequence(group)
    forward = check_forward(answer, group, whole)
    check_weights(answer, whole)
    backward = check_backward(answer, group, whole)
    return (
        f"output and gradients equal those of one process; each of {whole.ranks} ranks sent "
        f"{forward:,} bytes forward and {backward:,} backward. Well done."
    )


if __name__ == "__main__":
    check_exercise("20_ring_attention", verify, ranks=3)
