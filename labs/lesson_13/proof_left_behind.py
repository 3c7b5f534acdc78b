"""Two attempts, two deaths: what an exception, SIGKILL and torchrun's store leave behind.

Run it:      torchrun --standalone --nproc-per-node=2 --max-restarts=1 labs/lesson_13/proof_left_behind.py
"""

import os
import signal
import time
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from shared.runtime.errors import CourseError
from shared.runtime.group import read_environment
from shared.runtime.run import run


@dataclass(frozen=True)
class Config:
    patience_s: float = 60.0
    timeout_s: float = 1.0  # of the group that cannot be formed; gloo takes some times as long


def first_attempt(rank: int, world_size: int) -> None:
    """Form a group as most scripts do. Then the last rank fails with an exception."""
    dist.init_process_group("gloo")
    dist.barrier()
    if rank == world_size - 1:
        raise ValueError("image 17 cannot be read")


def addresses_in_the_store() -> int:
    """How many ranks have left their address where ``init_process_group`` looks for them."""
    host = os.environ["MASTER_ADDR"]
    store = dist.TCPStore(host, int(os.environ["MASTER_PORT"]), is_master=False)
    return len([key for key in store.list_keys() if key.startswith("default_pg/")])


def second_attempt(rank: int, world_size: int, cfg: Config) -> None:
    """The last rank comes first, and does what it did in the first attempt. The others are late."""
    if rank < world_size - 1:
        return
    count = addresses_in_the_store()
    print(f"attempt 1, before any rank has joined: the store holds the addresses of {count} ranks")
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=cfg.timeout_s))
    except RuntimeError as error:
        message = str(error).partition(" with ")[0]  # then a line of gloo's source, and maybe an address
    else:
        raise CourseError("the last rank should have met the addresses of dead ranks")
    print(f"attempt 1: {message}")
    if count != world_size or message != "Gloo connectFullMesh failed":
        raise CourseError(
            f"it should have found the addresses of {world_size} dead ranks and to fail: {message}"
        )
    os.kill(os.getpid(), signal.SIGKILL)


def main(cfg: Config) -> None:
    rank, _, world_size = read_environment()
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        first_attempt(rank, world_size)
    else:
        second_attempt(rank, world_size, cfg)
    time.sleep(cfg.patience_s)  # torchrun ends this rank when it has noticed the death of the other one


if __name__ == "__main__":
    run(main, Config())  # run() wraps main in @record
