"""The training script named by the first argument, on few images; see ``tests/kills.py``."""

import sys
from pathlib import Path

from tests.kills import load_script

if __name__ == "__main__":
    sys.exit(load_script(Path(sys.argv[1])).main(sys.argv[2:]))
