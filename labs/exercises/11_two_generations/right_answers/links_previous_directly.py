# accepted: previous.pt is missing for a moment
"""No spare name: the older checkpoint goes before the old one takes its name."""

import os
from pathlib import Path


def save(data: bytes, latest: Path) -> None:
    new = latest.with_name("new.tmp")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    previous = latest.with_name("previous.pt")
    previous.unlink(missing_ok=True)
    os.link(latest, previous)
    new.replace(latest)
    folder = os.open(latest.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
