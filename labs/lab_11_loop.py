"""A loop that survives a kill at any moment: start it again, on any number of ranks, and it resumes.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_11_loop.py
Written by:  notebooks/11_checkpoints.ipynb (edit it there)
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lab_11_checkpointing import Checkpoints, Refused
from lab_13_stopping import run_rank, store_of_this_attempt


def main(folder: Path = Path("checkpoints")) -> int:
    store = store_of_this_attempt(timedelta(minutes=10))  # torchrun's may be of an attempt that died
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters())
    settings = {"optimizer": "adam"}  # with data, also the batch size of all ranks together
    checkpoints = Checkpoints(folder, settings, dist.new_group(backend="gloo"), model, optimizer)
    step = checkpoints.resume()
    while step < 30:
        inputs = torch.full((8, 64), 0.01 * step)  # derived from the step number
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 10 == 0:
            checkpoints.save(step)
    saved = checkpoints.finish(step)
    if rank == 0:
        print(f"step {step}, saved: {saved}")
    return 0 if saved else 1


if __name__ == "__main__":
    sys.exit(run_rank(lambda: main(*map(Path, sys.argv[1:])), (Refused,)))
