"""Check of exercise 04. Run it: torchrun --standalone --nproc-per-node=3 CHECK.py"""

from types import ModuleType

import torch
import torch.distributed as dist

from shared.comm.nccl_rules import NcclWatch, verdict, watch_for_nccl
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

NUMEL = 840
DTYPES = (torch.float64, torch.int32)


def values_of(rank: int, dtype: torch.dtype, group: Group) -> torch.Tensor:
    """A rank's piece, known to all: no two numbers of all pieces are equal."""
    return torch.arange(NUMEL, dtype=dtype, device=group.device) + NUMEL * rank


def call(answer: ModuleType, piece: torch.Tensor) -> tuple[object, NcclWatch]:
    """What the answer returns, and what it sent. Memory that it never fills is NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # then torch.empty fills new tensors with NaN
    try:
        with watch_for_nccl() as log:
            result = answer.all_gather(piece)
    finally:
        torch.use_deterministic_algorithms(False)
    return result, log


def check_form(result: object, piece: torch.Tensor, n: int) -> None:
    if not isinstance(result, torch.Tensor):
        raise Wrong(
            f"the result is {type(result).__name__}, expected one tensor of {n} pieces: ({n * NUMEL},)"
        )
    if result.shape != (n * NUMEL,):
        raise Wrong(f"the result is {tuple(result.shape)}, expected one tensor of {n} pieces: ({n * NUMEL},)")
    if result.dtype != piece.dtype:
        raise Wrong(f"the result is of {result.dtype}, the pieces are of {piece.dtype}")


def check_values(result: torch.Tensor, expected: list[torch.Tensor]) -> None:
    for place, part in enumerate(result.chunk(len(expected))):
        if torch.equal(part, expected[place]):
            continue
        for rank, other in enumerate(expected):
            if torch.equal(part, other):
                raise Wrong(f"in place {place} lies the piece of rank {rank}")
        missing = int(part.isnan().sum())
        if missing:
            raise Wrong(
                f"in place {place} {missing} of {NUMEL} numbers were never written: is a step missing?"
            )
        raise Wrong(f"in place {place} lies no rank's piece; it begins with {part[0]:g}")


def check_messages(log: NcclWatch, piece: torch.Tensor, n: int) -> None:
    collectives = sorted(set(log.counts()) - {"send", "recv"})
    if collectives:
        raise Wrong(f"the result is right, but it comes from {', '.join(collectives)}; use single messages")
    messages, sent, target = log.count("send"), log.bytes("send"), (n - 1) * piece.nbytes
    if sent != target:
        raise Wrong(
            f"the result is right, but this rank sent {sent:,} bytes in {messages} messages; "
            f"the target is {target:,}, {n - 1} pieces"
        )


def judge_here(answer: ModuleType, group: Group, dtype: torch.dtype) -> NcclWatch:
    n = group.world_size
    piece = values_of(group.rank, dtype, group)
    result, log = call(answer, piece)
    check_form(result, piece, n)
    expected = [values_of(rank, dtype, group) for rank in range(n)]
    check_values(result, expected)
    if not torch.equal(piece, expected[group.rank]):
        raise Wrong("the result is right, but the piece that was handed in has changed")
    check_messages(log, piece, n)
    return log


def judge(answer: ModuleType, group: Group, dtype: torch.dtype) -> None:
    """Compare the result on each rank, then replay the messages of all ranks by nccl's rules."""
    problem = None
    issued = None
    try:
        issued = judge_here(answer, group, dtype).issued
    except Wrong as error:
        problem = error
    ranks: list = [None] * group.world_size
    dist.all_gather_object(ranks, issued)
    if problem:
        raise problem
    if None in ranks:
        raise Wrong("the result is right on this rank, but not on all")
    for line in verdict(ranks):
        if not line.startswith("ignores"):  # a tag that agrees with the order does no harm
            raise Wrong(f"the result is right on gloo; replayed by nccl's rules, it {line}")


def verify(answer: ModuleType, group: Group) -> str:
    for dtype in DTYPES:
        judge(answer, group, dtype)
    n = group.world_size
    praise = f"each of {n} ranks sent {n - 1} pieces and has all {n}. Well done."
    if n & (n - 1) == 0:
        return f"{praise} With {n} ranks, ways for powers of two look right: check it with 3."
    return praise


if __name__ == "__main__":
    check_exercise("04_all_gather", verify, ranks=3)
