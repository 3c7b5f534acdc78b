"""The check of an exercise, with more patience in its collectives: the machine may stand still for seconds.

patient_check.py CHECK ARGUMENTS, with PATIENCE_S in the environment if 30 s are too many
"""

import os
import runpy
import sys
from pathlib import Path

from shared.runtime import exercises

if __name__ == "__main__":
    exercises.TIMEOUT_S = float(os.environ.get("PATIENCE_S", "30"))
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
