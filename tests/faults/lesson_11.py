"""Planted faults of lesson 11; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = []

STILL_WITHOUT = [
    "11_bad_files",
    "11_kill",
    "11_other_size",
    "11_rank0",
    "11_resume",
    "11_shards",
]
