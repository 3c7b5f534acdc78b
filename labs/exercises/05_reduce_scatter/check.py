"""Check of exercise 05. Run it: torchrun --standalone --nproc-per-node=4 CHECK.py"""

import math
from types import ModuleType

import torch

from shared.comm.record import CommRecord, record
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

NUMEL = 840  # divides by every number of ranks up to 8
BASE = 16


def values_of(rank: int, group: Group) -> torch.Tensor:
    """Element i of rank r is (i + 1) * 16 ** r: sums are exact, and tell how often each rank is in them."""
    return torch.arange(1, NUMEL + 1, dtype=torch.float64, device=group.device) * BASE**rank


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
    quotient = value / (index + 1)
    if quotient != quotient // 1 or not 0 <= quotient < BASE**n:
        return f"it is {value:g}, expected {(index + 1) * sum(BASE**rank for rank in range(n)):g}"
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


def check_sums(result: torch.Tensor, chunks: list[torch.Tensor], group: Group) -> None:
    expected = chunks[group.rank]
    for index, chunk in enumerate(chunks):
        if index != group.rank and torch.equal(result, chunk):
            raise Wrong(f"rank {group.rank} returns chunk {index}, complete; expected is chunk {group.rank}")
    off = (result != expected).nonzero().flatten().tolist()
    if not off:
        return
    if result.isnan().any():
        raise Wrong(f"{int(result.isnan().sum())} of {len(expected)} sums were never written")
    first = off[0]
    why = who_is_in(result[first].item(), group.rank * len(expected) + first, group.world_size)
    raise Wrong(f"{len(off)} of {len(expected)} sums differ; in the first of them {why}")


def check_messages(log: CommRecord, chunk: torch.Tensor, group: Group) -> None:
    n = group.world_size
    collectives = sorted(set(log.counts()) - {"send", "recv"})
    if collectives:
        raise Wrong(f"the sums are right, but they come from {', '.join(collectives)}; use single messages")
    messages, sent = log.count("send"), log.bytes("send")
    if messages != n - 1 or sent != (n - 1) * chunk.nbytes:
        raise Wrong(
            f"the sums are right, but {messages} messages with {sent:,} bytes were sent; "
            f"a ring sends {n - 1} with {(n - 1) * chunk.nbytes:,}"
        )
    if {send.peer for send in log.of("send")} - {(group.rank + 1) % n}:
        raise Wrong("a message went to another rank than the right neighbour")


def check_crossing(answer: ModuleType) -> None:
    for n, alpha_s, beta_s in ((4, 20e-6, 1e-9), (8, 5e-6, 2e-11), (64, 1e-3, 1e-9), (2, 20e-6, 1e-9)):
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


def verify(answer: ModuleType, group: Group) -> str:
    n = group.world_size
    chunks = torch.stack([values_of(rank, group) for rank in range(n)]).sum(0).tensor_split(n)
    result, log = call(answer, values_of(group.rank, group))
    check_form(result, chunks[group.rank])
    check_sums(result, chunks, group)
    check_messages(log, chunks[group.rank], group)
    try:
        check_crossing(answer)
    except NotImplementedError:
        raise Wrong("ring_reduce_scatter is right; crossing_bytes is not written yet") from None
    messages, sent = log.count("send"), log.bytes("send")
    return f"{messages} messages, {sent:,} bytes per rank, (n - 1) / n of the tensor. Well done."


if __name__ == "__main__":
    check_exercise("05_reduce_scatter", verify)
