"""Two deaths and what is known of them: an exception leaves a file, SIGKILL leaves a number.

Run it:      torchrun --standalone --max-restarts=1 --nproc-per-node=2 --log-dir=LOGS labs/lab_13_record.py
Written by:  notebooks/13_elastic.ipynb
"""

import os
import signal
import time
from datetime import timedelta

import torch.distributed as dist

from shared.runtime.errors import CourseError
from shared.runtime.group import read_environment
from shared.runtime.run import run

WAIT_S = 60


def main() -> None:
    rank, _, world_size = read_environment()
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,  # torchrun's agent is
        timeout=timedelta(seconds=WAIT_S),
    )
    if rank == world_size - 1:
        before = ["attempt 0"] if store.check(["attempt 0 was here"]) else []
        print(f"attempt {attempt}: the store knows of {before}")
        if attempt != "0" and not before:
            raise CourseError("the store was to keep what attempt 0 left there")
        store.set("attempt 0 was here", "yes")
    store.set(f"{attempt}: {rank} is ready", "yes")
    if rank == world_size - 1:
        store.wait([f"{attempt}: {r} is ready" for r in range(world_size)])
        if attempt == "0":
            raise ValueError("image 17 cannot be read")
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(WAIT_S)  # torchrun ends us when the other one has died


if __name__ == "__main__":
    run(main)  # run() wraps main in @record
