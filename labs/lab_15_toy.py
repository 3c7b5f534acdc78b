"""A model on two devices inside DDP: each process has two devices of its own.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_15_toy.py
Written by:  notebooks/15_model_parallel.ipynb
"""

import os

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a group, or it holds it: exit code -6, lesson 08
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class TwoDeviceModel(nn.Module):
    """(batch, 64) to (batch, 10), one layer on each device. The output stays on the second device."""

    def __init__(self, first: torch.device, second: torch.device, hidden: int = 128) -> None:
        super().__init__()
        self.first = first
        self.second = second
        self.front = nn.Linear(64, hidden).to(first)
        self.back = nn.Linear(hidden, 10).to(second)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.front(x.to(self.first)))
        return self.back(hidden.to(self.second))


def two_devices(local_rank: int) -> tuple[torch.device, torch.device]:
    """GPUs 2 r and 2 r + 1 for the process of local rank r; the CPU twice where there are too few GPUs."""
    needed = 2 * int(os.environ["LOCAL_WORLD_SIZE"])
    if torch.cuda.is_available() and torch.cuda.device_count() >= needed:
        return torch.device("cuda", 2 * local_rank), torch.device("cuda", 2 * local_rank + 1)
    return torch.device("cpu"), torch.device("cpu")


def main() -> None:
    first, second = two_devices(int(os.environ["LOCAL_RANK"]))
    if first.type == "cuda":
        torch.cuda.set_device(first)
    dist.init_process_group("gloo")  # on GPUs as well: a group of nccl has one device, this model has two
    rank = dist.get_rank()
    torch.manual_seed(rank)  # other parameters and other data on each rank
    ddp = DistributedDataParallel(TwoDeviceModel(first, second))  # device_ids and output_device stay None
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    x = torch.rand(32, 64)
    y = torch.randint(10, (32,), device=second)  # the labels lie where the output is
    for step in range(5):
        optimizer.zero_grad()
        loss = F.cross_entropy(ddp(x), y)
        loss.backward()  # the gradient goes back from the second device to the first by itself
        optimizer.step()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step}: mean loss {mean.item():.4f}")
    mine = ddp.module.back.weight.detach().clone()
    dist.broadcast(mine, src=0)
    assert torch.equal(mine, ddp.module.back.weight), "the ranks were to hold the same parameters"
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
