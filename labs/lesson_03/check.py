"""Check of exercise 03. Run it: torchrun --standalone --nproc-per-node=3 CHECK.py"""

import os
import time
from types import ModuleType

import torch
import torch.distributed as dist

from shared.comm.nccl_rules import NcclWatch, verdict, watch_for_nccl
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

DTYPES = (torch.int32, torch.float64)
LATE_S = 0.5  # so much later than the others rank 0 begins
COUNT_BYTES = 64  # enough for a count, in any dtype


def values_of(rank: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A rank's tensor, known to all. No two of 8 ranks have one length; each takes a while to send."""
    length = 10_000 * (5 * rank % 8 + 1)
    return torch.arange(length, dtype=dtype, device=device) + 100_000 * rank


def begin_late(group: Group, dtype: torch.dtype) -> None:
    """Rank 0 begins when all others have begun: who does not wait reads what is not there yet."""
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    begun = dist.PrefixStore(f"exercise 03, {dtype}", store)
    begun.add("ranks", 1)
    if group.rank == 0:
        while begun.add("ranks", 0) < group.world_size:
            time.sleep(0.01)
        time.sleep(LATE_S)


def problem_of(incoming: object, expected: list[torch.Tensor], left: int) -> str | None:
    """What is wrong with the tensor that came; ``expected`` has what each rank sends."""
    right_one = expected[left]
    if not isinstance(incoming, torch.Tensor):
        return f"the result is {type(incoming).__name__}, expected a tensor"
    if incoming.dtype != right_one.dtype:
        return f"the result is of {incoming.dtype}, expected {right_one.dtype}"
    for rank, sent in enumerate(expected):
        if rank != left and torch.equal(incoming, sent):
            return f"the result is what rank {rank} sent; the left neighbour is rank {left}"
    if incoming.shape != right_one.shape:
        return f"the result has shape {tuple(incoming.shape)}, rank {left} sent {tuple(right_one.shape)}"
    if not torch.equal(incoming, right_one):
        return f"the result is not what rank {left} sent: it begins with {incoming[0]:g}"
    return None


def problem_of_calls(log: NcclWatch, outgoing: torch.Tensor) -> str | None:
    others = sorted(set(log.counts()) - {"send", "recv"})
    if others:
        return f"the result is right, but it comes from {', '.join(others)}; use messages"
    sent = log.bytes("send")
    if sent > outgoing.nbytes + COUNT_BYTES:
        return f"the result is right, but {sent:,} bytes were sent for a tensor of {outgoing.nbytes:,}"
    return None


def call(answer: ModuleType, outgoing: torch.Tensor) -> tuple[object, NcclWatch, bool]:
    """What the answer returns, what it called, and whether it left ``outgoing`` as it was.

    A length that is read too early is the largest number. Afterwards ``outgoing`` is used for something else.
    """
    given = outgoing.clone()
    torch.use_deterministic_algorithms(True, warn_only=True)  # then torch.empty fills new tensors
    try:
        with watch_for_nccl() as log:
            incoming = answer.exchange(outgoing)
    finally:
        torch.use_deterministic_algorithms(False)
    kept = torch.equal(outgoing, given)
    outgoing.zero_()  # on return it may be used
    return incoming, log, kept


def judge(answer: ModuleType, group: Group, dtype: torch.dtype) -> None:
    n = group.world_size
    expected = [values_of(rank, dtype, group.device) for rank in range(n)]
    outgoing = expected[group.rank].clone()
    begin_late(group, dtype)
    incoming, log, kept = call(answer, outgoing)
    problem = problem_of(incoming, expected, (group.rank - 1) % n)
    if problem is None and not kept:
        problem = "the result is right, but the tensor that was handed in has changed"
    problem = problem or problem_of_calls(log, outgoing)
    ranks: list = [None] * n
    dist.all_gather_object(ranks, (problem, log.issued))
    if problem:
        raise Wrong(problem)
    if any(problem for problem, _ in ranks):
        raise Wrong("the result is right on this rank, but not on all")
    for line in verdict([issued for _, issued in ranks]):
        if not line.startswith("ignores"):  # a tag that agrees with the order does no harm
            raise Wrong(f"the result is right on gloo; replayed by nccl's rules, it {line}")


def judge_swap(answer: ModuleType, group: Group) -> None:
    """``swap`` by itself: ``exchange`` may do without it."""
    n = group.world_size
    left = (group.rank - 1) % n
    outgoing = torch.full((4,), group.rank, device=group.device)
    incoming = torch.full_like(outgoing, n)
    try:
        answer.swap(outgoing, (group.rank + 1) % n, incoming, left)
    except NotImplementedError:
        raise Wrong("exchange is right; swap is not written yet") from None
    if not (incoming == left).all():
        raise Wrong(f"exchange is right, but swap does not fill incoming with what rank {left} sends")


def verify(answer: ModuleType, group: Group) -> str:
    for dtype in DTYPES:
        judge(answer, group, dtype)
    judge_swap(answer, group)
    return f"each of {group.world_size} ranks has its left neighbour's tensor, on nccl as well. Well done."


if __name__ == "__main__":
    check_exercise("03_exchange", verify, ranks=3)
