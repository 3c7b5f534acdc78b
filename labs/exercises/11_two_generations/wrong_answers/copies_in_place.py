# rejected: previous.pt is there when save returns, but was written before os.fsync
"""The old checkpoint is copied, and its copy never flushed: a power cut may leave it empty."""

import os
import shutil
from pathlib import Path


def save(data: bytes, latest: Path) -> None:
    new = latest.with_name("new.tmp")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    shutil.copyfile(latest, latest.with_name("previous.pt"))
    new.replace(latest)
    folder = os.open(latest.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
