# rejected: killed after os.replace: latest.pt is missing
"""The old checkpoint gets its new name first: for a moment there is no latest."""

import os
from pathlib import Path


def save(data: bytes, latest: Path) -> None:
    new = latest.with_name("new.tmp")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    latest.replace(latest.with_name("previous.pt"))
    new.replace(latest)
    folder = os.open(latest.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
