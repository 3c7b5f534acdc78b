# rejected: killed after open: latest.pt holds 0 of 100,000 bytes
"""Moves a copy of the old checkpoint aside, then opens the only good one for writing."""

import os
from pathlib import Path


def save(data: bytes, latest: Path) -> None:
    spare = latest.with_name("spare.tmp")
    with spare.open("wb") as file:
        file.write(latest.read_bytes())
        file.flush()
        os.fsync(file.fileno())
    spare.replace(latest.with_name("previous.pt"))
    with latest.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(latest.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
