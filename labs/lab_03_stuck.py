"""Every rank sends to its right neighbour before it receives: no rank gets any further.

Run it:      torchrun --standalone --nproc-per-node=3 labs/lab_03_stuck.py
Ends with:   exit code 1
Written by:  notebooks/03_point_to_point.ipynb (edit it there)
"""

from datetime import timedelta

import torch
import torch.distributed as dist

PATIENCE = timedelta(seconds=40)  # without a timeout, gloo waits 30 minutes


def main() -> None:
    dist.init_process_group("gloo", timeout=PATIENCE)
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    mine = torch.tensor([float(rank)])
    theirs = torch.empty(1)
    dist.send(mine, right)  # returns when the right neighbour is in recv
    dist.recv(theirs, left)
    raise AssertionError(f"rank {rank} has the number of rank {left}: there was no deadlock")


if __name__ == "__main__":
    main()
