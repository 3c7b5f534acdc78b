"""Planted faults of lesson 02; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault("02_five_ways", "= dist.get_rank() + 1", "= 1", "env://: heard [1, 1]"),
    Fault("02_five_ways", "is_master=rank == 0", "is_master=True", "address already in use"),
    Fault(
        "02_who_waits", "done = requests[-1].end", "done = requests[0].end", "a rank was done before the last"
    ),
    Fault(
        "02_who_waits",
        'return self._noted("get", [key], self.inner.get, key)',
        "return self.inner.get(key)",
        "was to write its own address and read each",
    ),
    Fault("02_missing_rank", "world_size=3", "world_size=2", "was to say", ranks=0),
    Fault("02_wrong_address", "ports[rank]}", "ports[0]}", "was to say", ranks=0),
    Fault("02_taken_port", '"A": port, ', '"A": get_free_port(), ', "was to say", ranks=0),
    Fault("02_reused_file", "shutil.copy(file, left)", "pass", "was to say 'connectFullMesh", ranks=0),
    Fault("02_agents", '"--nnodes=2"', '"--nnodes=1"', "other node missing: torchrun said", ranks=0),
    Fault(
        "02_agents",
        'f"--local-addr={NOWHERE}"]',
        '"--local-addr=127.0.0.1"]',
        "torchrun was to complain about no-such-host.invalid",
        ranks=0,
    ),
    Fault(
        "02_backend",
        'both if has_gpu else "cpu:gloo"',
        "both",
        "RuntimeError: nccl2 requires at least one CUDA device",
    ),
]
