"""A model on two devices, alone and inside DDP: each process has two devices of its own.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_15/proof_ddp.py
"""

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.data import load_images
from shared.training.parity import assert_all_equal, assert_same_on_every_rank, gradients, parameters


@dataclass(frozen=True)
class Config:
    steps: int = 6
    batch: int = 840  # of all ranks; divides by 1 to 8
    learning_rate: float = 0.5
    tolerance: float = 1e-12  # float64


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


def build(seed: int, devices: tuple, cfg: Config) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = ToyMpModel(*devices).double()
    return model, torch.optim.SGD(model.parameters(), cfg.learning_rate, momentum=0.9)


reference = build  # one process, from rank 0's seed, without DDP


def main(cfg: Config) -> None:
    devices = two_devices()
    dist.init_process_group("gloo")  # on GPUs as well: a group of nccl has one device, this model has two
    rank, world_size = dist.get_rank(), dist.get_world_size()
    alone, alone_optimizer = reference(0, devices, cfg)
    model, optimizer = build(rank, devices, cfg)  # another model on each rank
    ddp = DistributedDataParallel(model)  # device_ids and output_device stay None
    data = load_images("digits")
    x = data.train_x[: cfg.batch].flatten(1).double()
    y = data.train_y[: cfg.batch]
    mine = slice(rank, None, world_size)
    for step in range(cfg.steps):
        train_step(ddp, optimizer, x[mine], y[mine])
        train_step(alone, alone_optimizer, x, y)
        assert_all_equal("gradient", gradients(ddp), gradients(alone), cfg.tolerance)
        assert_all_equal("parameter", parameters(ddp), parameters(alone), cfg.tolerance)
        assert_same_on_every_rank(f"step {step}", parameters(ddp))
    where = " and ".join(str(device) for device in devices)
    print_on_rank_0(f"DDP over two devices, {where}: equals one process after each of {cfg.steps} steps")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run(main, Config())
