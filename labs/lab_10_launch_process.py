"""The training script of this lesson, started by Process.

Written by:  notebooks/10_training_template.ipynb
Run it:      python labs/lab_10_launch_process.py
or:          python labs/lab_10_launch_process.py --ranks 4 --epochs 2
"""

import argparse
import os
import sys
from multiprocessing.connection import wait

from lab_10_launch_spawn import entry, free_port
from torch.multiprocessing import get_context


def launch() -> int:
    """Start the ranks and wait; return the exit code of the first one that fails."""
    parser = argparse.ArgumentParser(epilog="All other options go to the training script.", add_help=False)
    parser.add_argument("--ranks", type=int, default=2, help="how many processes to start")
    options, arguments = parser.parse_known_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does: ranks share the cores
    context = get_context("spawn")
    port = free_port()
    running = []
    for rank in range(options.ranks):
        process = context.Process(target=entry, args=(rank, options.ranks, port, arguments))
        process.start()
        running.append(process)
    failed = 0
    while running:
        wait([process.sentinel for process in running])  # until any of them ends; join() waits for one
        for process in [one for one in running if one.exitcode is not None]:
            running.remove(process)
            if process.exitcode and not failed:
                failed = process.exitcode
                for other in running:
                    other.terminate()
    return failed


if __name__ == "__main__":
    sys.exit(launch())
