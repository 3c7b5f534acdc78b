# rejected: os.fsync has seen 0 of its 1,000 bytes
"""os.fsync before Python has handed its buffer to the system."""

import os
from pathlib import Path


def save(data: bytes, latest: Path) -> None:
    new = latest.with_name("new.tmp")
    with new.open("wb") as file:
        file.write(data)
        os.fsync(file.fileno())
    spare = latest.with_name("spare.tmp")
    spare.unlink(missing_ok=True)
    os.link(latest, spare)
    spare.replace(latest.with_name("previous.pt"))
    new.replace(latest)
    folder = os.open(latest.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
