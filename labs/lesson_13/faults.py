"""Planted faults of lesson 13."""

from tests.planted import Fault

FAULTS: list[Fault] = [
    Fault(
        lab="10_train",
        old="        is_last = stopped or trainer.step == trainer.steps\n",
        new="""        if stopped:
            os._exit(SAVED_AND_LEFT)
        is_last = trainer.step == trainer.steps
""",
        told="the step of the newest checkpoint: expected",
        run="13_requeue",
        launch="python",
        ranks=0,
    ),
    Fault(
        lab="13_left_behind",
        old='key.startswith("default_pg/")',
        new='key.startswith("pg/")',
        told="it should have found the addresses of 2 dead ranks",
        launch="torchrun",
        options=("--max-restarts=1",),
    ),
    Fault(
        lab="13_nodes",
        old="os.kill(rank.pid, signal.SIGCONT)",
        new="os.kill(rank.pid, signal.SIGKILL)",
        told="steps in the newest checkpoint: expected",
        launch="python",
        ranks=0,
    ),
    Fault(
        lab="13_requeue",
        old='watch.start("job 1", torchrun(ranks, restarts=3), "run")',
        new='watch.start("job 1", torchrun(ranks, restarts=1), "run")',
        told="job 1 ended before step",
        launch="python",
        ranks=0,
    ),
    Fault(
        lab="13_restart",
        old='optimizer.load_state_dict(saved["optimizer"])',
        new="pass",
        told="the end differs from that of an unbroken run",
        launch="torchrun",
        options=("--max-restarts=1",),
        arguments=("FOLDER/run.pt",),
    ),
    Fault(
        lab="13_try_except",
        old="continue  # skip this batch, train on",
        new="break",
        told="expected wrong sums at",
    ),
]
