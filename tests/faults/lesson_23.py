"""Planted faults of lesson 23; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault("23_parameter_server", "self.weight.sub_(", "self.weight.add_(", "weights: differs by"),
    Fault(
        "23_rref", "            rpc.rpc_sync(keeper, let_go)\n", "", "tables are alive on worker1, expected 0"
    ),
]

STILL_WITHOUT = [
    "23_calls",
    "23_cost",
    "23_faults",
]
