"""Planted faults of lesson 01; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = []

STILL_WITHOUT = [
    "01_launchers",
    "01_options",
    "01_two_nodes",
    "01_who",
]
