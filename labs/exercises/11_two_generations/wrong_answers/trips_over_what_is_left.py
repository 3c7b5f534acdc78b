# rejected: FileExistsError: [Errno 17] File exists
"""A killed save leaves its temporary names behind, and the next one cannot take them."""

import os
from pathlib import Path


def save(data: bytes, latest: Path) -> None:
    new, spare = latest.with_name("new.tmp"), latest.with_name("spare.tmp")
    with new.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.link(latest, spare)
    spare.replace(latest.with_name("previous.pt"))
    new.replace(latest)
    folder = os.open(latest.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
