"""The training script, whose rank 1 fails in step 5 while it still saves step 4.

``rank_that_fails.py SCRIPT HOW [OPTION ...]``: HOW is ``late``, if that save ends 3 s after the failure,
or ``stuck``.
"""

import importlib.util
import os
import sys
import threading
import time
from types import ModuleType

FAILS_IN = 5
FOR_EVER_S = 1000


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("training_script", path)
    script = importlib.util.module_from_spec(spec)
    sys.modules["training_script"] = script
    spec.loader.exec_module(script)
    return script


def plant(script: ModuleType, how: str) -> None:
    train_step = script.Trainer.train_step
    write_data = script.CommittingWriter.write_data
    failed = threading.Event()

    def fail(trainer, images, labels, steps):
        if trainer.step + 1 == FAILS_IN:
            failed.set()
            raise RuntimeError("planted")
        return train_step(trainer, images, labels, steps)

    def write_late(writer, plan, planner):
        failed.wait()
        time.sleep(3 if how == "late" else FOR_EVER_S)
        return write_data(writer, plan, planner)

    script.Trainer.train_step = fail
    script.CommittingWriter.write_data = write_late
    script.LEAVE_S = 2.0 if how == "stuck" else 600.0


if __name__ == "__main__":
    training_script = load(sys.argv[1])
    if os.environ["RANK"] == "1":
        plant(training_script, sys.argv[2])
    sys.exit(training_script.main(sys.argv[3:]))
