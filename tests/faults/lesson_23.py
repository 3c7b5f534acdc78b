"""Planted faults of lesson 23."""

from tests.planted import Fault

FAULTS: list[Fault] = [
    Fault(
        lab="23_rpc",
        old="rank = rpc.rpc_sync(there, who)",
        new="rank = who()",
        told="three calls to worker",
        run="23_calls",
    ),
    Fault(
        lab="23_calls",
        old="if len(here) == guests:",
        new="if len(here) >= 1:",
        told="meet() answered when only",
    ),
    Fault(
        lab="23_weights",
        old="begin = size * parameter.device_mesh.get_local_rank()",
        new="begin = 0",
        told="is not what the trainers have",
        run="23_sync",
        ranks=4,
    ),
    Fault(
        lab="23_sync",
        old="self.spare[name][part].copy_(piece)",
        new="self.parts[name][part].copy_(piece)",
        told="answers with pieces of version 3, not yet published",
    ),
    Fault(
        lab="23_parameter_server",
        old="self.weight.sub_(",
        new="self.weight.add_(",
        told="weights: differs by",
    ),
    Fault(
        lab="23_rref",
        old="            rpc.rpc_sync(keeper, let_go)\n",
        new="",
        told="tables are alive on worker1, expected 0",
    ),
    Fault(
        lab="23_cost",
        old="return rpc.rpc_sync(there, look_up, args=(indices,))",
        new="return one_by_one(there, indices)",
        told="one batch: 256 calls were counted, expected 1",
    ),
    Fault(
        lab="23_faults",
        old="call(sleep, cfg.slow_s, timeout=cfg.patience_s)",
        new="call(sleep, cfg.slow_s)",
        told="an error was expected, but the call returned",
    ),
]
