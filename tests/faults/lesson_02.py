"""Planted faults of lesson 02; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault("02_five_ways", "= dist.get_rank() + 1", "= 1", "env://: rank, size"),
]

STILL_WITHOUT = [
    "02_backend",
    "02_faults",
    "02_no_name",
    "02_who_waits",
]
