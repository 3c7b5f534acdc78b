"""FSDP by hand, proved: equal to DDP and to one process after every step; what a step holds, copies included.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_19_by_hand.py
Written by:  notebooks/19_fsdp.ipynb (edit it there)
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from lab_19_unit import Unit
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
from shared.training.storages import StorageRecorder


@dataclass(frozen=True)
class Config:
    seed: int = 19
    steps: int = 5
    global_batch: int = 840  # divides by every world size up to 8
    learning_rate: float = 0.2
    tolerance: float = 1e-12  # float64


class NotedUnit(Unit):
    """A unit that notes how many bytes its storages hold whenever something has happened to it."""

    def __init__(self, name: str, module: nn.Module, life: list[dict]) -> None:
        self.name = name
        self.life = life
        self.memory: StorageRecorder | None = None
        super().__init__(module)

    def unshard(self) -> None:
        super().unshard()
        self.note("all-gather")

    def reshard(self) -> None:
        self.note("compute")
        super().reshard()
        self.note("reshard")

    def reduce_gradients(self) -> None:
        super().reduce_gradients()
        self.note("reduce-scatter")

    def note(self, moment: str) -> None:
        """``most``: the most that this process held, copies and activations included, since the last note."""
        if self.memory is None:
            return
        sizes = {
            "shards": held([self.shard, self.shards[0].grad]),
            "unsharded": held([self.unsharded]),
            "gradients": held(p.grad for p in self.params),
            "most": self.memory.peak,
        }
        self.memory.reset_peak()
        self.life.append({"unit": self.name, "moment": moment} | sizes)


def held(tensors: Iterable[torch.Tensor | None]) -> int:
    """Bytes of the storages behind them."""
    return sum(t.untyped_storage().nbytes() for t in tensors if t is not None)


def net() -> nn.Sequential:
    """A classifier of digits, with a frozen layer, one that is used twice, and awkward sizes."""
    frozen = nn.Linear(64, 30).requires_grad_(False)
    twice = nn.Linear(31, 31)
    inner = nn.Sequential(twice, nn.Tanh(), twice, nn.Tanh())
    layers = (nn.Linear(30, 31), nn.Tanh(), inner, nn.Linear(31, 29), nn.Tanh(), nn.Linear(29, 10))
    return nn.Sequential(nn.Flatten(), frozen, *layers).double()


def compare(what: str, unit: Unit, other: nn.Module, tolerance: float) -> None:
    """Hold this rank's shard of the gradient, and the whole parameters, against a module that is whole."""
    trainable = [p for p in other.parameters() if p.requires_grad]
    gradient = torch.cat([p.grad.flatten() for p in trainable])
    padding = -len(gradient) % dist.get_world_size()
    shard = F.pad(gradient, (0, padding)).chunk(dist.get_world_size())[dist.get_rank()]
    ours = torch.cat([part.grad for part in unit.shards])
    assert_equal(f"{what}: gradient", ours, shard[: len(ours)], tolerance)
    for p, q in zip(unit.full(), trainable, strict=True):
        assert_equal(f"{what}: parameters", p, q.detach(), tolerance)


def step_of(model: nn.Module, units: list[NotedUnit], x: torch.Tensor, y: torch.Tensor) -> StorageRecorder:
    """Forward and backward; returns the recorder of what was held."""
    memory = StorageRecorder([shard for unit in units for shard in unit.shards])
    for unit in units:
        unit.memory = memory
    with memory:
        F.cross_entropy(model(x), y).backward()
    for unit in units:
        unit.memory = None
    return memory


def main(cfg: Config) -> None:
    with process_group(seed=cfg.seed, timeout_s=60) as group:
        model = net().to(group.device)  # another one on each rank
        broadcast_from_rank_0(model.parameters())
        torch.manual_seed(cfg.seed)
        alone = net().to(group.device)
        ddp = DistributedDataParallel(copy.deepcopy(alone))
        data = load_images("digits")
        life: list[dict] = []
        units = {index: NotedUnit(f"unit {index}", model[index], life) for index in (2, 4, 5, 7)}
        sgd = {"lr": cfg.learning_rate, "momentum": 0.9}
        optimizers = [
            torch.optim.SGD([p for p in model.parameters() if p.requires_grad], **sgd),
            torch.optim.SGD(ddp.parameters(), **sgd),
            torch.optim.SGD(alone.parameters(), **sgd),
        ]
        for step in range(cfg.steps):
            x, y = batch(data, step, cfg.global_batch, group.device)
            my_x, my_y = x[group.rank :: group.world_size], y[group.rank :: group.world_size]
            life.clear()
            with record() as log:
                step_of(model, list(units.values()), my_x, my_y)
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
            assert all(held([unit.unsharded]) == 0 for unit in units.values()), "a unit is still whole"
        print_on_rank_0(f"{cfg.steps} steps equal to DDP and to one process; in each {dict(log.counts())}")

        # Once more with so few images that activations hardly count.
        life.clear()
        x, y = batch(data, 0, group.world_size, group.device)
        step_of(model, list(units.values()), x[group.rank : group.rank + 1], y[group.rank : group.rank + 1])
        record_results("lab_19_by_hand", {"life": life})


if __name__ == "__main__":
    run(main, Config())
