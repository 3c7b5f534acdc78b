# rejected: latest.pt gets its name before os.fsync: a power cut may leave it empty
"""Survives a kill, but not a power cut: nothing is flushed to the disk before the name counts."""

import os
from pathlib import Path


def save(data: bytes, latest: Path) -> None:
    new, spare = latest.with_name("new.tmp"), latest.with_name("spare.tmp")
    new.write_bytes(data)
    spare.unlink(missing_ok=True)
    os.link(latest, spare)
    spare.replace(latest.with_name("previous.pt"))
    new.replace(latest)
    folder = os.open(latest.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
