"""Planted faults of lesson 06; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault("06_by_hand", "parameter.grad /= dist.get_world_size()", "pass", "differs by"),
    Fault("06_by_hand", "        broadcast_parameters(model)\n", "", "at the start"),
    Fault(
        "06_train",
        "parameter.grad /= dist.get_world_size()",
        "pass",
        "the losses of 2 ranks and of one differ by",
    ),
    Fault(
        "06_uneven", 'reduction="sum") / total', 'reduction="sum") / len(x)', "the weighted mean is off by"
    ),
    Fault("06_flat", "flat /= dist.get_world_size()", "pass", "differs by"),
]

STILL_WITHOUT = [
    "06_faults",
]
