# rejected: killed after os.remove: latest.pt is missing
"""Makes room for the new checkpoint before putting it there."""

import os
from pathlib import Path


def save(data: bytes, latest: Path) -> None:
    new = latest.with_name("new.tmp")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    spare = latest.with_name("spare.tmp")
    spare.unlink(missing_ok=True)
    os.link(latest, spare)
    spare.replace(latest.with_name("previous.pt"))
    latest.unlink()
    new.replace(latest)
    folder = os.open(latest.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
