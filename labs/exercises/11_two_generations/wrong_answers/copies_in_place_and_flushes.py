# rejected: previous.pt holds 0 of 100,000 bytes
"""The copy is on the disk in the end, but a kill tears it, and the older checkpoint is gone by then."""

import os
import shutil
from pathlib import Path


def save(data: bytes, latest: Path) -> None:
    new = latest.with_name("new.tmp")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    previous = latest.with_name("previous.pt")
    shutil.copyfile(latest, previous)
    with previous.open("rb+") as copy:
        os.fsync(copy.fileno())
    new.replace(latest)
    folder = os.open(latest.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
