"""Planted faults of lesson 23; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault(
        "23_rpc",
        "rank = rpc.rpc_sync(there, who)",
        "rank = who()",
        "three calls to worker",
        run="23_calls",
    ),
    Fault("23_calls", "if len(here) == guests:", "if len(here) >= 1:", "meet() answered when only"),
    Fault(
        "23_weights",
        "begin = size * parameter.device_mesh.get_local_rank()",
        "begin = 0",
        "is not what the trainers have",
        run="23_sync",
        ranks=4,
    ),
    Fault(
        "23_sync",
        "self.spare[name][part].copy_(piece)",
        "self.parts[name][part].copy_(piece)",
        "answers with pieces of version 3, not yet published",
    ),
    Fault("23_parameter_server", "self.weight.sub_(", "self.weight.add_(", "weights: differs by"),
    Fault(
        "23_rref", "            rpc.rpc_sync(keeper, let_go)\n", "", "tables are alive on worker1, expected 0"
    ),
    Fault(
        "23_cost",
        "return rpc.rpc_sync(there, look_up, args=(indices,))",
        "return one_by_one(there, indices)",
        "one batch: 256 calls were counted, expected 1",
    ),
    Fault(
        "23_faults",
        "call(sleep, cfg.slow_s, timeout=cfg.patience_s)",
        "call(sleep, cfg.slow_s)",
        "an error was expected, but the call returned",
    ),
    Fault(
        "23_faults",
        "for kind in (ValueError, TypeError, RuntimeError):",
        "for kind in (ValueError, TypeError, RuntimeError, IndexError):",
        "expected was IndexError",
    ),
]
