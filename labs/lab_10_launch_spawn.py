"""The training script of this lesson, started by torch.multiprocessing.spawn.

Written by:  notebooks/10_training_template.ipynb
Run it:      python labs/lab_10_launch_spawn.py
or:          python labs/lab_10_launch_spawn.py --ranks 4 --epochs 2
"""

import argparse
import gc
import os
import socket
import sys

import torch.multiprocessing as mp
from lab_10_train import main


def entry(index: int, ranks: int, port: int, arguments: list[str]) -> None:
    """Where each process begins. On one machine its index is its rank and its local rank."""
    os.environ["RANK"] = str(index)
    os.environ["LOCAL_RANK"] = str(index)
    os.environ["WORLD_SIZE"] = str(ranks)
    os.environ["LOCAL_WORLD_SIZE"] = str(ranks)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    exit_code = main(arguments)
    gc.collect()  # as at the end of the script
    sys.exit(exit_code)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def launch() -> int:
    parser = argparse.ArgumentParser(epilog="All other options go to the training script.", add_help=False)
    parser.add_argument("--ranks", type=int, default=2, help="how many processes to start")
    options, arguments = parser.parse_known_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does: ranks share the cores
    try:
        mp.spawn(entry, args=(options.ranks, free_port(), arguments), nprocs=options.ranks)
    except mp.ProcessExitedException as error:  # it has said why; spawn has ended the others
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(launch())
