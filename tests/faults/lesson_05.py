"""Planted faults of lesson 05; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault("05_ring", "target += incoming", "target.copy_(incoming)", "sum over 2 ranks: differs by"),
    Fault(
        "05_ring",
        "sendrecv(outgoing, right, target, left)",
        "sendrecv(x, right, x.clone(), left)",
        "sum over",
    ),
]

STILL_WITHOUT = [
    "05_cost",
    "05_deadlock",
    "05_other_ways",
]
