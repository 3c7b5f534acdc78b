"""The training script of this lesson, started by Process.

Written by:  notebooks/10_training_template.ipynb
Run it:      python labs/lab_10_launch_process.py
or:          python labs/lab_10_launch_process.py --ranks 4 --epochs 2
"""

import os
import sys
from multiprocessing.connection import wait

from lab_10_train import main
from torch.multiprocessing import get_context

from shared.runtime.options import Options, positive
from shared.runtime.ports import HERE, free_port
from shared.runtime.run import run


def entry(rank: int, ranks: int, port: int, arguments: list[str]) -> None:
    """Where each process begins. On one machine its rank is its local rank."""
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({name: str(value) for name, value in told.items()})
    os.environ.update(MASTER_ADDR=HERE, MASTER_PORT=str(port))
    run(main, arguments)


def launch() -> None:
    parser = Options(description=__doc__.partition("\n")[0], epilog="All else goes to the training script.")
    parser.add_argument("--ranks", type=positive, default=2, help="how many processes to start (2)")
    options, arguments = parser.parse_known_args()
    context = get_context("spawn")
    common = (options.ranks, free_port(), arguments)
    running = [context.Process(target=entry, args=(rank, *common)) for rank in range(options.ranks)]
    for process in running:
        process.start()
    while running:
        wait([process.sentinel for process in running])  # until one ends: join() in turn could wait for ever
        ended = [process for process in running if process.exitcode is not None]
        running = [process for process in running if process.exitcode is None]
        if failed := [process.exitcode for process in ended if process.exitcode]:
            for process in running:
                process.terminate()
            sys.exit(failed[0])


if __name__ == "__main__":
    run(launch)
