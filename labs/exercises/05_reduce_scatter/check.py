"""Check of exercise 05. Run it: torchrun --standalone --nproc-per-node=4 CHECK.py"""

from types import ModuleType

import torch

from shared.comm.record import record
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

NUMEL = 840  # divides by every number of ranks up to 8


def values_of(rank: int, group: Group) -> torch.Tensor:
    """Whole numbers, so that the order of additions does not matter; other ones for each element and rank."""
    return torch.arange(1, NUMEL + 1, dtype=torch.float64, device=group.device) * (rank + 1)


def verify(answer: ModuleType, group: Group) -> str:
    n = group.world_size
    x = values_of(group.rank, group)
    with record() as log:
        result = answer.ring_reduce_scatter(x)
    chunks = torch.stack([values_of(rank, group) for rank in range(n)]).sum(0).tensor_split(n)
    expected = chunks[group.rank]
    if not isinstance(result, torch.Tensor) or result.shape != expected.shape:
        shape = tuple(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
        raise Wrong(f"the result is {shape}, expected one chunk of {len(expected)} elements")
    for index, chunk in enumerate(chunks):
        if index != group.rank and torch.equal(result, chunk):
            raise Wrong(f"rank {group.rank} returns chunk {index}, complete; expected is chunk {group.rank}")
    if not torch.equal(result, expected):
        off = (result != expected).sum().item()
        raise Wrong(f"{off} of {len(expected)} sums differ; {result[0]:g} is first, expected {expected[0]:g}")
    chunk_bytes = expected.numel() * expected.element_size()
    messages, sent = log.count("send"), log.bytes("send")
    if messages != n - 1 or sent != (n - 1) * chunk_bytes:
        raise Wrong(
            f"the sums are right, but {messages} messages with {sent:,} bytes were sent; "
            f"a ring sends {n - 1} with {(n - 1) * chunk_bytes:,}"
        )
    if {call.peer for call in log.of("send")} - {(group.rank + 1) % n}:
        raise Wrong("a message went to another rank than the right neighbour")
    return f"{messages} messages, {sent:,} bytes per rank, (n - 1) / n of the tensor. Well done."


if __name__ == "__main__":
    check_exercise("05_reduce_scatter", verify)
