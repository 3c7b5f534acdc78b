"""Planted faults of lesson 24; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault("24_gradients", 'HERE["head"] = build("head", 99', 'HERE["head"] = build("head", 98', "differs by"),
    Fault("24_train", "lr=rate, momentum", "lr=2 * rate, momentum", "losses: differs by"),
]

STILL_WITHOUT = [
    "24_faults",
]
