"""Ranks as forks of one process that has torch, watched by nobody: what fails leaves the others waiting.

fork_ranks.py [--only RANK] SCRIPT ARGUMENTS
"""

import os
import runpy
import sys

import torch.distributed as dist

from shared.runtime.ports import HERE, free_port

RANKS = 2


def set_variables(rank: int, port: int) -> None:
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS}
    variables |= {"MASTER_ADDR": HERE, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in variables.items()})


def main() -> None:
    del sys.argv[0]
    ranks = list(range(RANKS))
    if sys.argv[0] == "--only":
        ranks = [int(sys.argv[1])]
        del sys.argv[:2]
    assert dist.is_available()
    port = free_port()
    before = dict(os.environ)
    for rank in ranks:
        set_variables(rank, port)
        if os.fork() == 0:
            runpy.run_path(sys.argv[0], run_name="__main__")
            return
    os.environ.clear()
    os.environ.update(before)
    codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in ranks]
    sys.exit(max(codes, key=abs))


if __name__ == "__main__":
    main()
