"""DDP over the model of lab_15_toy equals one process.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_15_ddp.py
Written by:  notebooks/15_model_parallel.ipynb (edit it there)
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from lab_15_toy import ToyMpModel, train_step, two_devices
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


def build(seed: int, devices: tuple, cfg: Config) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = ToyMpModel(*devices).double()
    return model, torch.optim.SGD(model.parameters(), cfg.learning_rate, momentum=0.9)


reference = build  # one process, from rank 0's seed, without DDP


def main(cfg: Config) -> None:
    devices = two_devices()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    alone, alone_optimizer = reference(0, devices, cfg)
    model, optimizer = build(rank, devices, cfg)  # another model on each rank
    ddp = DistributedDataParallel(model)  # makes the ranks equal
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
    print_on_rank_0(f"DDP over two devices equals one process after each of {cfg.steps} steps")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run(main, Config())
