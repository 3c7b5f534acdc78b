"""Planted faults of lesson 13; the form is described in ``tests/faults/__init__.py``."""

from tests.faults import Fault

FAULTS: list[Fault] = [
    Fault(
        "10_train",
        "    if checkpoints and stopped:\n",
        "    if False:\n",
        "the step of the newest checkpoint: expected",
        run="13_requeue",
        launch="python",
        ranks=0,
    ),
    Fault(
        "13_interval",
        'optimizer.load_state_dict(saved["optimizer"])',
        "pass",
        "every 4 steps",
        ranks=0,
    ),
    Fault(
        "13_left_behind",
        'key.startswith("default_pg/")',
        'key.startswith("pg/")',
        "it was to find the addresses of 2 dead ranks",
        launch="torchrun",
        options=("--max-restarts=1",),
    ),
    Fault(
        "13_nodes",
        "os.kill(rank.pid, signal.SIGCONT)",
        "os.kill(rank.pid, signal.SIGKILL)",
        "steps in the newest checkpoint: expected",
        launch="python",
        ranks=0,
    ),
    Fault(
        "13_orphans",
        "ctypes.CDLL(None).prctl(1, 9);",
        "ctypes.CDLL(None).prctl(1, 0);",
        "plain ranks were to outlive their launcher, and the others were not",
        launch="python",
        ranks=0,
    ),
    Fault(
        "13_requeue",
        'watch.start("job 1", torchrun(ranks, restarts=1), "run")',
        'watch.start("job 1", torchrun(ranks), "run")',
        "job 1 ended before step",
        launch="python",
        ranks=0,
    ),
    Fault(
        "13_restart",
        'optimizer.load_state_dict(saved["optimizer"])',
        "pass",
        "the end differs from that of an unbroken run",
        launch="torchrun",
        options=("--max-restarts=1",),
    ),
    Fault(
        "13_torchft",
        'if find_spec("torchft") is None:',
        'if find_spec("torch") is None:',
        "No package metadata was found for torchft",
        ranks=0,
    ),
    Fault(
        "13_try_except",
        "continue  # skip this batch, train on",
        "break",
        "expected wrong sums at",
    ),
]

STILL_WITHOUT: list[str] = []
