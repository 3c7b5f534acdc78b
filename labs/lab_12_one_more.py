"""Rank 0 has two batches, the others have three: in the third all-reduce they wait for it, until a timeout.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_12_one_more.py
Written by:  notebooks/12_uneven_inputs.ipynb (edit it there)
Ends with:   exit code 1
"""

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def main(timeout_s: float = 20.0) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
    rank = dist.get_rank()
    batches = 2 if rank == 0 else 3
    for batch in range(batches):
        gradient = torch.full((4,), float(rank + batch))
        dist.all_reduce(gradient)
    print(f"rank {rank} has used its {batches} batches")
    time.sleep(2 * timeout_s)  # rank 0 writes a report; nothing has failed
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
