"""Planted faults of lesson 00."""

from tests.planted import Fault

FAULTS: list[Fault] = [
    Fault(
        lab="00_hello",
        old="items[rank::world_size]",
        new="items.chunk(world_size)[0]",
        told="the sum over all ranks is",
    ),
    Fault(
        lab="00_digits",
        old="dist.all_reduce(together)",
        new="dist.broadcast(together, src=0)",
        told="from what one process finds",
    ),
    Fault(
        lab="00_echo",
        old="world_size() // 2:",
        new="world_size():",
        told="no rank failed before it",
    ),
]
