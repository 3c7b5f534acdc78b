"""A rank for trials of a job script: it trains nothing, because only signals and seconds matter there.

    stand_in.py FOLDER DEED DEED

DEED is what a rank does, one rank on each of two nodes: a number of seconds that its save takes after
SIGTERM, "fails", or "hangs". The first is for the node whose torchrun has the store of the rendezvous. All
marks are files in FOLDER. In an attempt after a save, all ranks end well at once.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import psutil

SAVED_AND_LEFT = 75


def number_of_node() -> int:
    """0 where torchrun has the store of the rendezvous, else 1.

    On a cluster that is the first node of the job: it alone has the name of the endpoint. Here both nodes are
    one machine, and the first torchrun that asks has the store. When it leaves, the other one leaves, too.
    """
    port = 20000 + int(os.environ["SLURM_JOB_ID"]) % 9000  # as in the job script
    torchrun = psutil.Process(os.getppid())
    listens = [
        connection.laddr.port
        for connection in torchrun.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    return 0 if port in listens else 1


def save(folder: Path, rank: int, ranks: int, seconds: float) -> int:
    """Wait for SIGTERM, save, and leave when all ranks have saved: else Slurm would end the slower ones."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    (folder / f"ready {rank}").touch()
    while not asked:
        time.sleep(0.05)
    time.sleep(seconds)
    (folder / f"saved {rank}").touch()
    while not all((folder / f"saved {other}").exists() for other in range(ranks)):
        time.sleep(0.05)
    return SAVED_AND_LEFT


def hang(folder: Path, rank: int) -> None:
    """Hang in C. SIGTERM is noted, but its handler is Python, which gets no turn: as in a kernel of nccl."""
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    libc = ctypes.CDLL(None)
    mutex = ctypes.create_string_buffer(256)
    libc.pthread_mutex_lock(mutex)
    (folder / f"ready {rank}").touch()
    libc.pthread_mutex_lock(mutex)  # it is ours already, so nobody will ever unlock it


def main(folder: Path, *deeds: str) -> int:
    rank = number_of_node()  # torchrun numbers ranks as it likes
    ranks = int(os.environ["WORLD_SIZE"])
    if (folder / f"saved {rank}").exists():
        return 0
    if deeds[rank] == "hangs":
        hang(folder, rank)
    if deeds[rank] == "fails":
        while not (folder / "ready 0").exists():
            time.sleep(0.05)
        (folder / f"failed {rank}").touch()
        return 1
    return save(folder, rank, ranks, float(deeds[rank]))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
