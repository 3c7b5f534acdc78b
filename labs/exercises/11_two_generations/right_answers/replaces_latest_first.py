# accepted: fdatasync, and previous.pt gets its name last
"""A spare name holds the old checkpoint while latest.pt is replaced."""

import os
from pathlib import Path


def save(data: bytes, latest: Path) -> None:
    new = latest.with_name("new.tmp")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fdatasync(file.fileno())
    spare = latest.with_name("spare.tmp")
    spare.unlink(missing_ok=True)
    os.link(latest, spare)
    new.replace(latest)
    spare.replace(latest.with_name("previous.pt"))
    folder = os.open(latest.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
