"""Exercise 11: a save that survives a kill at any moment, and keeps the checkpoint before."""

import os
from pathlib import Path


def save(data: bytes, latest: Path) -> None:
    """Write ``data`` to ``latest``, and keep what was there as ``previous.pt`` in the same folder.

    ``latest`` is on the disk before the call; ``previous.pt`` is missing only before the first one. On return
    ``latest`` holds ``data``, ``previous.pt`` holds the checkpoint before it, and both are on the disk with
    their names. A process killed at any moment leaves a whole checkpoint at ``latest``, the old or the new.
    If there was a ``previous.pt``, there still is one, whole and older than ``latest``. The next call works
    after any kill.
    """
    previous = latest.with_name("previous.pt")
    # solution: begin
    new = latest.with_name("new.tmp")
    spare = latest.with_name("spare.tmp")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    spare.unlink(missing_ok=True)  # left by a kill
    os.link(latest, spare)  # a second name for the old checkpoint; `latest` stays where it is
    new.replace(latest)
    spare.replace(previous)  # last, or for a moment both names would hold the old checkpoint
    folder = os.open(latest.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    # solution: end
