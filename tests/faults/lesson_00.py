"""Planted faults of lesson 00; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = []

STILL_WITHOUT = [
    "00_fails",
    "00_hello",
    "00_machine",
]
