"""A training loop that hangs: rank 0 saves, and in the function that saves there is a barrier.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_26_saves.py
Ends with:   exit code 1
Written by:  notebooks/26_when_it_hangs.ipynb

It hangs for as long as the time-out, 30 s here.
"""

import io
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


def save(model: nn.Module) -> None:
    torch.save(model.state_dict(), io.BytesIO())
    dist.barrier()  # to be safe


def train(model: nn.Module, steps: int, save_every: int) -> None:
    for step in range(1, steps + 1):
        model(torch.ones(2, 4)).sum().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.data -= 0.1 * p.grad
        if step % save_every == 0 and dist.get_rank() == 0:
            save(model)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    train(nn.Linear(4, 1), steps=5, save_every=2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
