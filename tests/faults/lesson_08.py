"""Planted faults of lesson 08; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault("08_ddp", "train_step(ddp, optimizer", "train_step(model, optimizer", "differs by"),
]

STILL_WITHOUT = [
    "08_bypass",
    "08_options",
    "08_train",
]
