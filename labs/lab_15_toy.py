"""A model on two devices inside DDP: each process has two devices of its own.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_15_toy.py
Written by:  notebooks/15_model_parallel.ipynb (edit it there)
"""

import os

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a group, or it holds it: exit code -6, lesson 08
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class ToyMpModel(nn.Module):
    """(batch, 64) to (batch, 10), one layer on each device. The output stays on the second device."""

    def __init__(self, first: torch.device, second: torch.device, hidden: int = 128) -> None:
        super().__init__()
        self.front = nn.Linear(64, hidden, device=first)
        self.back = nn.Linear(hidden, 10, device=second)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.front(x.to(self.front.weight.device)))
        return self.back(hidden.to(self.back.weight.device))


def two_devices() -> tuple[torch.device, torch.device]:
    """GPUs 2 r and 2 r + 1 for the process of *local* rank r; the CPU twice where there are too few GPUs."""
    local_rank = int(os.environ["LOCAL_RANK"])
    if torch.accelerator.device_count() < 2 * int(os.environ["LOCAL_WORLD_SIZE"]):
        return torch.device("cpu"), torch.device("cpu")
    kind = torch.accelerator.current_accelerator().type
    return torch.device(kind, 2 * local_rank), torch.device(kind, 2 * local_rank + 1)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> float:
    """One step, with or without DDP; the labels go where the output is."""
    optimizer.zero_grad()
    output = model(x)
    loss = F.cross_entropy(output, y.to(output.device))
    loss.backward()  # the gradient goes back from the second device to the first by itself
    optimizer.step()
    return loss.item()


def main() -> None:
    first, second = two_devices()
    dist.init_process_group("gloo")  # on GPUs as well: a group of nccl has one device, this model has two
    rank = dist.get_rank()
    if rank == 0:
        print(f"{dist.get_world_size()} ranks with {dist.get_backend()}, two devices each: {first}, {second}")
    torch.manual_seed(rank)  # other parameters and other data on each rank
    ddp = DistributedDataParallel(ToyMpModel(first, second))  # device_ids and output_device stay None
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    x = torch.rand(32, 64)
    y = torch.randint(10, (32,))
    losses = []
    for _ in range(20):
        losses.append(train_step(ddp, optimizer, x, y))
    assert losses[-1] < losses[0], "the model has not learned"

    mine = ddp.module.back.weight.detach().clone()
    dist.broadcast(mine, src=0)
    assert torch.equal(mine, ddp.module.back.weight), "the ranks were to hold the same parameters"
    if rank == 0:
        print(f"loss of rank 0's part: {losses[0]:.3f} at first, {losses[-1]:.3f} in step {len(losses)}")
    dist.barrier()  # nobody leaves while another rank still communicates
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
