"""Planted faults of lesson 10; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = []

STILL_WITHOUT = [
    "10_batch",
    "10_claims",
    "10_launch_process",
    "10_launch_spawn",
    "10_one_process",
    "10_sync_batch_norm",
    "10_train",
]
