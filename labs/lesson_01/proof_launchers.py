"""The ranks of lab_01_who without torchrun: a script starts them, by mp.spawn and by Process in a loop.

Run it:      python labs/lesson_01/proof_launchers.py 2
"""

import logging
import os
import sys
import time

import torch.multiprocessing as mp

from shared.runtime.errors import CourseError
from shared.runtime.ports import free_port
from shared.runtime.run import run

import lab_01_who

FAILED = 3  # exit code of the process that fails on purpose


def start_rank(index: int, world_size: int, port: int, stays_s: float) -> None:
    """Where each process begins. On one node the index is both its local rank and its rank."""
    mine = {
        "RANK": index,
        "LOCAL_RANK": index,
        "WORLD_SIZE": world_size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    told = [name for name in mine if name in os.environ]
    if told:
        raise CourseError(f"the launcher has set {told}")
    for name, value in mine.items():
        os.environ[name] = str(value)
    lab_01_who.main()
    sys.stdout.flush()  # a process that is killed loses its unflushed output
    if index == world_size - 1:
        sys.exit(FAILED)
    time.sleep(stays_s)


def by_spawn(world_size: int) -> None:
    """mp.spawn notices a process that fails, and ends those that would stay for ten minutes."""
    logging.getLogger(mp.spawn.__module__).setLevel(logging.ERROR)  # it would tell a process id
    try:
        mp.spawn(start_rank, args=(world_size, free_port(), 600), nprocs=world_size)
    except mp.ProcessExitedException as error:
        if (error.error_index, error.exit_code) != (world_size - 1, FAILED):
            raise CourseError(f"mp.spawn tells of process {error.error_index}: {error}") from None
        print(f"mp.spawn: exit code {FAILED} was noticed, the others were ended, an error was raised")
    else:
        raise CourseError("mp.spawn should have noticed that a process failed")


def by_process(world_size: int) -> None:
    """join() waits for a process, and says nothing about its end."""
    context = mp.get_context("spawn")
    port = free_port()
    processes = []
    for index in range(world_size):
        process = context.Process(target=start_rank, args=(index, world_size, port, 0))
        process.start()
        processes.append(process)
    for process in processes:
        process.join()
    codes = [process.exitcode for process in processes]
    if codes != [0] * (world_size - 1) + [FAILED]:
        raise CourseError(f"the ranks of Process left with exit codes {codes}")
    print(f"Process: join() raised nothing; the exit codes are {codes}")


def main(world_size: int) -> None:
    by_spawn(world_size)
    by_process(world_size)


if __name__ == "__main__":
    run(main, int(sys.argv[1]))
