"""Planted faults of lesson 13; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = []

STILL_WITHOUT = [
    "13_interval",
    "13_nodes",
    "13_orphans",
    "13_record",
    "13_train",
    "13_try_except",
]
