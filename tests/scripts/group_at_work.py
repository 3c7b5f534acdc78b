"""Four ranks that do what labs do with ``shared``: seeds, prints, results."""

import random

import numpy as np
import torch
import torch.distributed as dist

from shared.runtime.group import process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0, progress
from shared.runtime.results import record_results
from shared.runtime.run import run

LINES = 100


def main() -> None:
    with process_group(seed=7) as group:
        for _ in range(LINES):
            print(f"unordered {group.rank} " + str(group.rank) * 500)
        dist.barrier()
        for turn in reversed(range(group.world_size)):
            if turn == group.rank:
                print(f"reversed {group.rank}")
            dist.barrier()
        print_in_rank_order(f"ordered {group.rank}")
        print_on_rank_0(f"alone {group.rank}")
        steps = sum(1 for _ in progress(range(3), f"bar {group.rank}"))
        draws = [torch.rand(()).item(), float(np.random.rand()), random.random()]
        record_results("group_at_work", {"rank": group.rank, "draws": draws, "steps": steps})


if __name__ == "__main__":
    run(main)
