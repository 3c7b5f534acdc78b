"""Ranks that tell that they run, and then sleep. Arguments: a folder, and whether to outlive the launcher."""

import os
import sys
import time
from pathlib import Path

from shared.runtime import run as lab


def main(folder: str) -> None:
    (Path(folder) / os.environ["RANK"]).touch()
    time.sleep(600)


if __name__ == "__main__":
    if "outlive" in sys.argv:
        lab.die_with_launcher = lambda: None
    lab.run(main, sys.argv[1])
