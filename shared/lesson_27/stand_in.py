"""A rank for trials of a job script: it trains nothing, because only signals and seconds matter there.

    stand_in.py FOLDER DEED DEED ...

DEED is what each rank does, one rank a node: a number of seconds that its save takes after SIGTERM, "fails",
or "hangs". All marks are files in FOLDER. In an attempt after a save, all ranks end well at once.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

SAVED_AND_LEFT = 75


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
    # Ranks are numbered by torchrun as it likes. Node 0 holds its store, and must be the one that hangs.
    rank = int(os.environ["SLURM_NODEID"])
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
