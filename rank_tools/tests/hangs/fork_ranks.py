"""Ranks as forks of one process that has torch, watched by nobody: what fails leaves the others waiting.

fork_ranks.py --port PORT [--ranks N] [--only RANK] SCRIPT ARGUMENTS
"""

import argparse
import os
import runpy
import sys

import torch.distributed as dist


def set_variables(rank: int, ranks: int, port: int) -> None:
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in variables.items()})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", type=int)
    parser.add_argument("script", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    sys.argv = options.script
    started = range(options.ranks) if options.only is None else [options.only]
    assert dist.is_available()
    before = dict(os.environ)
    for rank in started:
        set_variables(rank, options.ranks, options.port)
        if os.fork() == 0:
            runpy.run_path(sys.argv[0], run_name="__main__")
            return
    os.environ.clear()
    os.environ.update(before)
    codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in started]
    sys.exit(max(codes, key=abs))


if __name__ == "__main__":
    main()
