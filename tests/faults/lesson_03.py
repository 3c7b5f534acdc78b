"""Planted faults of lesson 03; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault(
        "03_messages",
        "dist.recv(box, src=0, group=mail, tag=tag)",
        "dist.recv(box, src=0, group=mail, tag=WEIGHT + BIAS - tag)",
        "differs by",
    ),
    Fault("03_ring", "held += mine", "held -= mine", "sum of ranks 0 to 1: differs by"),
]

STILL_WITHOUT = [
    "03_deadlock",
    "03_in_flight",
    "03_mismatch",
]
