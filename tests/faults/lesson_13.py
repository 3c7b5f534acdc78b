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
        "13_regroup",
        "dist.broadcast(momentum, giver)",
        "pass",
        "the end differs from that of an unbroken run",
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
        arguments=("FOLDER/run.pt",),
    ),
    Fault(
        "13_try_except",
        "continue  # skip this batch, train on",
        "break",
        "expected wrong sums at",
    ),
]
