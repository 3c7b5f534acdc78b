"""Check of exercise 05. Run it: torchrun --standalone --nproc-per-node=3 CHECK.py"""

import math
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from unittest.mock import patch

import torch
import torch.distributed as dist

from shared.comm.record import CommRecord, record
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

NUMEL = 840  # divides by every number of ranks up to 8
BASE = 16
FIRST = 2**24 + 1  # float32 cannot hold it


def values_of(rank: int, group: Group) -> torch.Tensor:
    """Element i of rank r is (FIRST + i) * 16 ** r: sums are exact, and tell how often a rank is in them."""
    return torch.arange(FIRST, FIRST + NUMEL, dtype=torch.float64, device=group.device) * BASE**rank


def call(answer: ModuleType, x: torch.Tensor) -> tuple[object, CommRecord]:
    """What the answer returns, and what it sent. Memory that it never fills is NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # then torch.empty fills new tensors with NaN
    try:
        with record() as log:
            result = answer.ring_reduce_scatter(x)
    finally:
        torch.use_deterministic_algorithms(False)
    return result, log


def who_is_in(value: float, index: int, n: int) -> str:
    """Says which ranks' numbers are missing from a wrong sum at ``index``, or are in it more than once."""
    quotient = value / (FIRST + index)
    if quotient != quotient // 1 or not 0 <= quotient < BASE**n:
        return f"it is {value:g}, expected {(FIRST + index) * sum(BASE**rank for rank in range(n)):g}"
    problems = []
    for rank in range(n):
        times = int(quotient) // BASE**rank % BASE
        if times == 0:
            problems.append(f"the numbers of rank {rank} are missing")
        elif times > 1:
            problems.append(f"those of rank {rank} are in it {times} times")
    return ", ".join(problems)


def check_form(result: object, expected: torch.Tensor) -> None:
    if not isinstance(result, torch.Tensor):
        raise Wrong(f"the result is {type(result).__name__}, expected a chunk of {len(expected)} elements")
    if result.shape != expected.shape:
        raise Wrong(f"the result is {tuple(result.shape)}, expected one chunk of {len(expected)} elements")
    if result.dtype != expected.dtype:
        raise Wrong(f"the result is of {result.dtype}, the tensor handed in is of {expected.dtype}")


def check_sums(result: torch.Tensor, x: torch.Tensor, chunks: list[torch.Tensor], rank: int) -> None:
    expected = chunks[rank]
    off = (result != expected).nonzero().flatten().tolist()
    if not off:
        return
    for index, chunk in enumerate(chunks):
        if torch.equal(result, chunk):
            raise Wrong(f"rank {rank} returns chunk {index}, complete; expected is chunk {rank}")
    for index, (own, chunk) in enumerate(zip(x.tensor_split(len(chunks)), chunks, strict=True)):
        if index != rank and torch.equal(own, chunk):
            raise Wrong(
                f"rank {rank} returns a chunk that is not complete, but its chunk {index} is; begin the loop "
                f"with another chunk, so that it is chunk {rank}"
            )
    if result.isnan().any():
        raise Wrong(f"{int(result.isnan().sum())} of {len(expected)} sums were never written")
    if torch.allclose(result, expected, rtol=1e-6):
        raise Wrong(f"{len(off)} of {len(expected)} sums are right to float32 alone; keep the dtype of x")
    first = off[0]
    why = who_is_in(result[first].item(), rank * len(expected) + first, len(chunks))
    raise Wrong(f"{len(off)} of {len(expected)} sums differ; in the first of them {why}")


def check_messages(log: CommRecord, chunk: torch.Tensor, rank: int, n: int) -> None:
    collectives = sorted(set(log.counts()) - {"send", "recv", "barrier"})
    if collectives:
        raise Wrong(f"the sums are right, but they come from {', '.join(collectives)}; use single messages")
    messages, sent = log.count("send"), log.bytes("send")
    if messages != n - 1 or sent != (n - 1) * chunk.nbytes:
        raise Wrong(
            f"the sums are right, but {messages} messages with {sent:,} bytes were sent; "
            f"a ring sends {n - 1} with {(n - 1) * chunk.nbytes:,}"
        )
    if {send.peer for send in log.of("send")} - {(rank + 1) % n}:
        raise Wrong("a message went to another rank than the right neighbour")


def drawn_cases() -> list[tuple[int, float, float]]:
    """Numbers of ranks, alphas and betas that no answer can know in advance."""
    return [
        (2 ** random.randint(2, 10), 10 ** random.uniform(-6, -3), 10 ** random.uniform(-12, -9))
        for _ in range(3)
    ]


def check_crossing(answer: ModuleType) -> None:
    known = [(4, 20e-6, 1e-9), (8, 5e-6, 2e-11), (64, 1e-3, 1e-9), (2, 20e-6, 1e-9)]
    for n, alpha_s, beta_s in known + drawn_cases():
        size = answer.crossing_bytes(n, alpha_s, beta_s)
        where = f"crossing_bytes({n}, {alpha_s:g}, {beta_s:g})"
        if n == 2:
            if size != math.inf:
                raise Wrong(f"{where} is {size:g}; with two ranks doubling never sends more: math.inf")
            continue
        ring_s = 2 * (n - 1) * alpha_s + 2 * (n - 1) / n * size * beta_s
        doubling_s = math.log2(n) * (alpha_s + size * beta_s)
        if not (size > 0 and math.isclose(ring_s, doubling_s, rel_tol=1e-6)):
            raise Wrong(
                f"{where} is {size:g}; there a ring takes {ring_s:.3g} s, doubling {doubling_s:.3g} s"
            )


def check_ring(answer: ModuleType, group: Group, n: int) -> CommRecord:
    """Ranks 0 to n - 1 scatter their sum; returns what this one of them has sent."""
    chunks = torch.stack([values_of(rank, group) for rank in range(n)]).sum(0).tensor_split(n)
    x = values_of(group.rank, group)
    result, log = call(answer, x)
    check_form(result, chunks[group.rank])
    check_sums(result, x, chunks, group.rank)
    check_messages(log, chunks[group.rank], group.rank, n)
    return log


def check_smaller_ring(answer: ModuleType, group: Group) -> None:
    """The same without the last rank: the number of ranks is not known beforehand."""
    n = group.world_size - 1
    try:
        if group.rank < n:
            with ring_of(n, answer):
                check_ring(answer, group, n)
    except Wrong as error:
        raise Wrong(f"on {n} of the {group.world_size} ranks: {error}") from None


@contextmanager
def ring_of(n: int, answer: ModuleType) -> Iterator[None]:
    """Within it the answer is told that there are ``n`` ranks."""
    places = [dist, answer] if hasattr(answer, "get_world_size") else [dist]
    with ExitStack() as patches:
        for place in places:
            patches.enter_context(patch.object(place, "get_world_size", lambda group=None: n))
        patches.enter_context(patch.object(dist, "barrier", lambda *_, **__: None))  # for all ranks
        yield


def verify(answer: ModuleType, group: Group) -> str:
    log = check_ring(answer, group, group.world_size)
    if group.world_size > 2:
        check_smaller_ring(answer, group)
    try:
        check_crossing(answer)
    except NotImplementedError:
        raise Wrong("ring_reduce_scatter is right; crossing_bytes is not written yet") from None
    messages, sent = log.count("send"), log.bytes("send")
    return f"{messages} messages, {sent:,} bytes per rank, (n - 1) / n of the tensor. Well done."


if __name__ == "__main__":
    check_exercise("05_reduce_scatter", verify, ranks=3)
