"""FSDP by hand: each rank keeps a shard of each unit, and has the whole only while it computes.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_19_unit.py
Written by:  notebooks/19_fsdp.ipynb
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shared.comm.broadcast import broadcast_from_rank_0
from shared.comm.record import record
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.data import batch, load_images
from shared.training.parity import assert_equal


@dataclass(frozen=True)
class Config:
    seed: int = 19
    steps: int = 5
    global_batch: int = 840  # divides by every world size up to 8
    learning_rate: float = 0.2
    tolerance: float = 1e-12  # float64


def net() -> nn.Sequential:
    """A classifier of digits, with a frozen layer, one that is used twice, and awkward sizes."""
    frozen, twice = nn.Linear(64, 30).requires_grad_(False), nn.Linear(31, 31)
    inner, last = nn.Sequential(twice, nn.Tanh(), twice, nn.Tanh()), nn.Linear(29, 10)
    middle = (nn.Linear(30, 31), nn.Tanh(), inner, nn.Linear(31, 29), nn.Tanh())
    return nn.Sequential(nn.Flatten(), frozen, *middle, last).double()


def flatten(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """All numbers one behind the other, padded with zeros to a multiple of the number of ranks."""
    flat = torch.cat([t.detach().flatten() for t in tensors])
    return F.pad(flat, (0, -len(flat) % dist.get_world_size()))


def my_shard(flat: torch.Tensor) -> torch.Tensor:
    """Slice r of N equal ones on rank r."""
    return flat.chunk(dist.get_world_size())[dist.get_rank()]


class Unit:
    """A module that is whole only while it computes. In between, each rank keeps a shard of its parameters.

    ``unsharded``, (N * length,), holds the trainable parameters, which are views of it. Its memory is freed
    and filled again in the same storage: what autograd saves for backward points there. ``shard``, (length,),
    is for the optimizer. Each parameter must take part in each backward. See arXiv 2304.11277, section 3.2.
    """

    def __init__(self, name: str, module: nn.Module, life: list[dict]) -> None:
        self.name, self.life = name, life
        self.trainable = [p for p in module.parameters() if p.requires_grad]
        self.unsharded = flatten(self.trainable)
        self.shard = nn.Parameter(my_shard(self.unsharded).clone())
        ends = torch.tensor([p.numel() for p in self.trainable]).cumsum(0)
        for p, part in zip(self.trainable, self.unsharded.tensor_split(ends), strict=False):
            p.data = part.view_as(p)
            p.register_post_accumulate_grad_hook(self._gradient_ready)
        module.register_forward_pre_hook(lambda *_: self.gather("forward"))
        module.register_forward_hook(self._after_forward)
        self.free("start")

    def gather(self, moment: str) -> None:
        self.unsharded.untyped_storage().resize_(self.unsharded.nbytes)
        dist.all_gather_into_tensor(self.unsharded, self.shard.detach())
        self._note(f"{moment}: all-gather")

    def free(self, moment: str) -> None:
        self.unsharded.untyped_storage().resize_(0)
        self._note(f"{moment}: free")

    def _after_forward(self, module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        self.free("forward")
        output.register_hook(lambda _: self.gather("backward"))  # called before backward enters the module

    def _gradient_ready(self, _: nn.Parameter) -> None:
        if any(p.grad is None for p in self.trainable):
            return
        self._note("backward: compute")
        self.free("backward")
        mine = torch.empty_like(self.shard)
        dist.reduce_scatter_tensor(mine, flatten(p.grad for p in self.trainable))
        mine /= dist.get_world_size()  # gloo has no average
        for p in self.trainable:
            p.grad = None
        self.shard.grad = mine if self.shard.grad is None else self.shard.grad + mine
        self._note("backward: reduce-scatter")

    def _note(self, moment: str) -> None:
        """Write down how many bytes the storages of this unit hold."""
        held = {"unsharded": [self.unsharded], "gradients": [p.grad for p in self.trainable]}
        held["shards"] = [self.shard, self.shard.grad]
        sizes = {k: sum(t.untyped_storage().nbytes() for t in ts if t is not None) for k, ts in held.items()}
        self.life.append({"unit": self.name, "moment": moment} | sizes)


def compare(what: str, unit: Unit, other: nn.Module, tolerance: float) -> None:
    """Hold this rank's shard of the gradient, and the whole parameters, against a module that is whole."""
    gradient = my_shard(flatten(p.grad for p in other.parameters()))
    assert_equal(f"{what}: gradient", unit.shard.grad, gradient, tolerance)
    whole = torch.empty_like(unit.unsharded)
    dist.all_gather_into_tensor(whole, unit.shard.detach())
    assert_equal(f"{what}: parameters", whole, flatten(other.parameters()), tolerance)


def main(cfg: Config) -> None:
    with process_group(seed=cfg.seed, timeout_s=20) as group:
        model = net().to(group.device)  # another one on each rank
        broadcast_from_rank_0(model.parameters())
        torch.manual_seed(cfg.seed)
        alone = net().to(group.device)
        ddp, data, life = DistributedDataParallel(copy.deepcopy(alone)), load_images("digits"), []
        units = {index: Unit(f"unit {index}", model[index], life) for index in (2, 4, 5, 7)}
        trained = ([unit.shard for unit in units.values()], ddp.parameters(), alone.parameters())
        optimizers = [torch.optim.SGD(ps, cfg.learning_rate, momentum=0.9) for ps in trained]
        for step in range(cfg.steps):
            x, y = batch(data, step, cfg.global_batch, group.device)
            my_x, my_y = x[group.rank :: group.world_size], y[group.rank :: group.world_size]
            life.clear()
            with record() as log:
                F.cross_entropy(model(my_x), my_y).backward()
            assert log.counts() == {"all_gather": 2 * len(units), "reduce_scatter": len(units)}, log.counts()
            F.cross_entropy(ddp(my_x), my_y).backward()
            F.cross_entropy(alone(x), y).backward()
            for optimizer in optimizers:
                optimizer.step()
            for index, unit in units.items():
                compare(f"step {step}, {unit.name}, DDP", unit, ddp.module[index], cfg.tolerance)
                compare(f"step {step}, {unit.name}, one process", unit, alone[index], cfg.tolerance)
            for optimizer in optimizers:
                optimizer.zero_grad()
        print_on_rank_0(f"{cfg.steps} steps equal to DDP and to one process; in each {dict(log.counts())}")
        record_results("lab_19_unit", {"life": life})


if __name__ == "__main__":
    run(main, Config())
