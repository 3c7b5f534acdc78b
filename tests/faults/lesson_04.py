"""Planted faults of lesson 04; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault("04_by_hand", "received.chunk(n)", "received.flip(0).chunk(n)", "all_to_all"),
    Fault("04_by_hand", "dist.send(x, ranks[me + 1])", "dist.send(x * 2, ranks[me + 1])", "broadcast"),
]

STILL_WITHOUT = [
    "04_collectives",
    "04_groups",
    "04_identities",
    "04_mispaired",
]
