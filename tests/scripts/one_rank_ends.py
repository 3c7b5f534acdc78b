"""Rank 1 ends as told by the first argument, while the others wait for it."""

import sys

import torch.distributed as dist

from shared.runtime.errors import InputError
from shared.runtime.group import process_group
from shared.runtime.run import run


def main(how: str) -> None:
    if how == "input":
        raise InputError("every rank finds the same mistake")
    with process_group(smallest=2, largest=3) as group:
        if group.rank == 1 and how == "exit":
            sys.exit(3)
        if group.rank == 1:
            raise RuntimeError("rank 1 is the cause")
        dist.barrier()


if __name__ == "__main__":
    run(main, sys.argv[1])
