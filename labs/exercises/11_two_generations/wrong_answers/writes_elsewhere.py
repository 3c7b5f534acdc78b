# rejected: writes outside of the folder; os.replace works within one file system
"""Writes to the folder for temporary files, which may lie on another disk: then the move is a copy."""

import os
import shutil
import tempfile
from pathlib import Path


def save(data: bytes, latest: Path) -> None:
    spare = latest.with_name("spare.tmp")
    spare.unlink(missing_ok=True)
    os.link(latest, spare)
    spare.replace(latest.with_name("previous.pt"))
    with tempfile.NamedTemporaryFile("wb", delete=False) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    shutil.move(file.name, latest)
    folder = os.open(latest.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
