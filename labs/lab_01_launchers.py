"""One script, four launchers: what each of them tells a process, and what it leaves to us.

Written by:  notebooks/01_topology.ipynb
Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_01_launchers.py
or:          python -m torch.distributed.launch --standalone --nproc-per-node=2 labs/lab_01_launchers.py
or:          python labs/lab_01_launchers.py --spawn 2 --process 2
"""

import argparse
import logging
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.ports import free_port
from shared.runtime.report import print_in_rank_order
from shared.runtime.results import record_results
from shared.runtime.run import run

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what init_process_group reads
OF_TORCHRUN = (
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "LOCAL_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
)
FAILED = 3  # exit code of the process that fails on purpose


def reference(world_size: int) -> int:
    """The sum of all ranks, as one process adds it up."""
    return sum(range(world_size))


def variables() -> list[str]:
    """The variables of torchrun that this process has."""
    return [name for name in NEEDED + OF_TORCHRUN if name in os.environ]


def spmd_main(launcher: str, told: list[str]) -> None:
    """What every rank does, whoever started it. ``told``: the variables that the launcher had set."""
    with process_group(report=False) as group:
        total = torch.tensor(group.rank, device=group.device)
        dist.all_reduce(total)
        if total.item() != reference(group.world_size):
            raise CourseError(f"the ranks of {launcher} add up to {total}")
        if int(os.environ["RANK"]) != dist.get_rank():
            raise CourseError(f"RANK is {os.environ['RANK']}, the group says {dist.get_rank()}")
        print_in_rank_order(f"of {group.world_size}, local rank {group.local_rank}: started by {launcher}")
        record_results(
            f"lab_01_{launcher}",
            {
                "rank": group.rank,
                "local_rank": group.local_rank,
                "world_size": group.world_size,
                "told": told,
                "arguments": sys.argv[1:],
            },
        )


def entry(index: int, launcher: str, world_size: int, port: int) -> None:
    """Where a process of mp.spawn or Process begins. On one node its index is its local rank and its rank."""
    told = variables()
    os.environ["RANK"] = str(index)
    os.environ["LOCAL_RANK"] = str(index)
    os.environ["WORLD_SIZE"] = str(world_size)
    os.environ["LOCAL_WORLD_SIZE"] = str(world_size)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    run(spmd_main, launcher, told)


def by_spawn(world_size: int) -> None:
    """Start the ranks by mp.spawn; then look at what it does when a process fails."""
    failing = mp.spawn(leave, nprocs=2, join=False)
    mp.spawn(entry, args=("mp.spawn", world_size, free_port()), nprocs=world_size, join=True)
    logging.getLogger(mp.spawn.__module__).setLevel(logging.ERROR)  # it would tell a process id
    try:
        while not failing.join():
            pass  # it returns each time that a process has ended
    except mp.ProcessExitedException as error:
        if (error.error_index, error.exit_code) != (1, FAILED):
            raise CourseError(f"mp.spawn tells of process {error.error_index}: {error}") from None
        code = error.exit_code
        print(f"a process left with exit code {code}: mp.spawn ended the other and raised an error")
    else:
        raise CourseError("mp.spawn was to notice that a process failed")


def by_process(world_size: int) -> None:
    """Start the ranks by Process; then look at what it does when a process fails."""
    context = mp.get_context("spawn")
    port = free_port()
    failing = context.Process(target=leave, args=(1,))
    failing.start()
    processes = []
    for rank in range(world_size):
        process = context.Process(target=entry, args=(rank, "Process", world_size, port))
        process.start()
        processes.append(process)
    for process in processes:
        process.join()
    codes = [process.exitcode for process in processes]
    if any(codes):  # join does not look at them
        raise CourseError(f"the ranks of Process left with exit codes {codes}")

    failing.join()
    if failing.exitcode != FAILED:
        raise CourseError(f"the failing process left with exit code {failing.exitcode}, not {FAILED}")
    print(f"a process left with exit code {failing.exitcode}: join() raised nothing")


def by_hand(spawn: int | None, process: int | None) -> None:
    """One launcher after the other, each with so many ranks."""
    if spawn:
        by_spawn(spawn)
    if process:
        by_process(process)


def leave(index: int) -> None:
    """Process 0 would stay for ten minutes, process 1 fails."""
    if index == 0:
        time.sleep(600)
    sys.exit(FAILED)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--spawn", type=int, metavar="N", help="start N ranks by torch.multiprocessing.spawn")
    parser.add_argument("--process", type=int, metavar="N", help="start N ranks by Process")
    parser.add_argument("--local-rank", "--local_rank", type=int, help="torch.distributed.launch passes it")
    options = parser.parse_args()
    if options.spawn or options.process:
        run(by_hand, options.spawn, options.process)
    else:
        run(spmd_main, "torchrun" if options.local_rank is None else "launch", variables())
