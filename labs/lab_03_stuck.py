"""Every rank sends to its right neighbour before it receives: no rank gets any further.

Run it:      torchrun --standalone --nproc-per-node=3 labs/lab_03_stuck.py
Written by:  notebooks/03_point_to_point.ipynb (edit it there)
"""

from datetime import timedelta

import torch
import torch.distributed as dist

PATIENCE = timedelta(seconds=5)  # without a timeout, gloo waits 30 minutes


def main() -> None:
    dist.init_process_group("gloo")
    mail = dist.new_group(timeout=PATIENCE)
    rank, n = dist.get_rank(), dist.get_world_size()
    assert n > 1, "start at least 2 ranks"
    right, left = (rank + 1) % n, (rank - 1) % n
    mine = torch.tensor([float(rank)])
    theirs = torch.empty(1)
    try:
        dist.send(mine, right, group=mail)  # returns when the right neighbour is in recv
        dist.recv(theirs, left, group=mail)
    except RuntimeError:  # gloo's time was up, here or in a neighbour, which has left
        print(f"rank {rank} waited in vain")
    else:
        raise AssertionError(f"rank {rank} has the number of rank {left}: there was no deadlock")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
