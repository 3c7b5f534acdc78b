"""The training script of this lesson, started by torch.multiprocessing.spawn.

Written by:  notebooks/10_training_template.ipynb
Run it:      python labs/lab_10_launch_spawn.py
or:          python labs/lab_10_launch_spawn.py --ranks 4 --epochs 2
"""

import os
import sys

import torch.multiprocessing as mp
from lab_10_train import main

from shared.runtime.options import Options, positive
from shared.runtime.ports import HERE, free_port
from shared.runtime.run import run


def entry(index: int, ranks: int, port: int, arguments: list[str]) -> None:
    """Where each process begins. On one machine its index is its rank and its local rank."""
    told = {"RANK": index, "LOCAL_RANK": index, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({name: str(value) for name, value in told.items()})
    os.environ.update(MASTER_ADDR=HERE, MASTER_PORT=str(port))
    run(main, arguments)


def launch() -> None:
    parser = Options(description=__doc__.partition("\n")[0], epilog="All else goes to the training script.")
    parser.add_argument("--ranks", type=positive, default=2, help="how many processes to start (2)")
    options, arguments = parser.parse_known_args()
    try:
        mp.spawn(entry, args=(options.ranks, free_port(), arguments), nprocs=options.ranks)
    except mp.ProcessExitedException as error:  # it has said why; spawn has ended the others
        sys.exit(error.exit_code)


if __name__ == "__main__":
    run(launch)
