"""The training script, whose rank 1 fails in step 5 while it still saves step 4.

``rank_that_fails.py HOW [OPTION ...]``: HOW is ``late``, if that save ends 3 s after the failure,
or ``stuck``.
"""

import os
import sys
import threading
import time

import lab_10_train as script
import lab_11_checkpointing as checkpointing
import lab_13_stopping as stopping

FAILS_IN = 5
FOR_EVER_S = 1000


def plant(how: str) -> None:
    train_step = script.Trainer.train_step
    write_data = checkpointing.CommittingWriter.write_data
    failed = threading.Event()

    def fail(trainer, images, labels):
        if trainer.step + 1 == FAILS_IN:
            failed.set()
            raise RuntimeError("planted")
        return train_step(trainer, images, labels)

    def write_late(writer, plan, planner):
        failed.wait()
        time.sleep(3 if how == "late" else FOR_EVER_S)
        return write_data(writer, plan, planner)

    script.Trainer.train_step = fail
    checkpointing.CommittingWriter.write_data = write_late
    stopping.LEAVE_S = 2.0 if how == "stuck" else 600.0


if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        plant(sys.argv[1])
    sys.exit(script.main(sys.argv[2:]))
