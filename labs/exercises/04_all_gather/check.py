"""Check of exercise 04. Run it: torchrun --standalone --nproc-per-node=4 CHECK.py"""

from types import ModuleType

import torch

from shared.comm.record import record
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

NUMEL = 840


def values_of(rank: int, group: Group) -> torch.Tensor:
    """A rank's piece, known to all: no two numbers of all pieces are equal."""
    return torch.arange(NUMEL, dtype=torch.float64, device=group.device) + NUMEL * rank


def verify(answer: ModuleType, group: Group) -> str:
    n = group.world_size
    piece = values_of(group.rank, group)
    with record() as log:
        result = answer.all_gather(piece)
    if not isinstance(result, torch.Tensor) or result.shape != (n * NUMEL,):
        shape = tuple(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
        raise Wrong(f"the result is {shape}, expected one tensor of {n} pieces: ({n * NUMEL},)")
    expected = [values_of(rank, group) for rank in range(n)]
    for place, part in enumerate(result.view(n, NUMEL)):
        if torch.equal(part, expected[place]):
            continue
        for rank, other in enumerate(expected):
            if torch.equal(part, other):
                raise Wrong(f"in place {place} lies the piece of rank {rank}")
        raise Wrong(f"in place {place} lies no rank's piece; it begins with {part[0]:g}")
    if not torch.equal(piece, expected[group.rank]):
        raise Wrong("the result is right, but the piece that was handed in has changed")
    target = (n - 1) * piece.numel() * piece.element_size()
    messages, sent = log.count("send"), log.bytes("send")
    if sent != target:
        raise Wrong(
            f"the result is right, but this rank sent {sent:,} bytes in {messages} message(s); "
            f"the target is {target:,}, {n - 1} piece(s)"
        )
    return f"{messages} message(s), {sent:,} bytes per rank, n - 1 pieces. Well done."


if __name__ == "__main__":
    check_exercise("04_all_gather", verify)
