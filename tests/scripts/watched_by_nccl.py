"""Run a script as its ranks do, and write down the calls that ``shared.comm.nccl_rules`` judges.

``LAB FOLDER ARGUMENTS…``: each rank writes FOLDER/rank_N.pickle, however the script ends.
"""

import os
import pickle
import runpy
import sys
from pathlib import Path

from shared.comm.nccl_rules import watch_for_nccl

_, lab, folder, *arguments = sys.argv
sys.argv = [lab, *arguments]
sys.path.insert(0, str(Path(lab).parent))
watched = watch_for_nccl()
try:
    with watched:
        runpy.run_path(lab, run_name="__main__")
finally:
    path = Path(folder) / f"rank_{os.environ['RANK']}.pickle"
    path.write_bytes(pickle.dumps(watched.issued))
