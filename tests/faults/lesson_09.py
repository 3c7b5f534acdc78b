"""Planted faults of lesson 09; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = []

STILL_WITHOUT = [
    "09_flat",
    "09_naive",
    "09_overlapped",
    "09_paced",
    "09_wrong_turn",
]
