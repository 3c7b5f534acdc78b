"""FSDP by hand, proved: equal to DDP and to one process after every step; what a unit refuses.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_19/proof_by_hand.py
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shared.comm.broadcast import broadcast_from_rank_0
from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.data import batch, load_images
from shared.training.parity import assert_equal

from lab_19_unit import Unit


@dataclass(frozen=True)
class Config:
    seed: int = 19
    steps: int = 5
    global_batch: int = 840  # divides by every world size up to 8
    learning_rate: float = 0.2
    tolerance: float = 1e-12  # float64


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
    assert_equal(f"{what}: gradient", unit.shard.grad, shard, tolerance)
    for p, q in zip(unit.full(), trainable, strict=True):
        assert_equal(f"{what}: parameters", p, q.detach(), tolerance)


class Unused(nn.Module):
    """A module that holds more than it computes with."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(4, 4)
        self.spare = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def expect(error: type[Exception], says: str, call: Callable[[], object]) -> None:
    try:
        call()
    except error as raised:
        if says not in str(raised):
            raise
    else:
        raise CourseError(f"a unit should have said: {says}")


def what_a_unit_refuses(device: torch.device) -> None:
    layer = nn.Linear(4, 4, device=device)
    Unit(layer)
    expect(ValueError, "a parameter is in another unit", lambda: Unit(nn.Sequential(layer)))

    tokens = nn.Embedding(8, 4, device=device)
    head = nn.Linear(4, 8, bias=False, device=device)
    head.weight = tokens.weight
    Unit(tokens)
    expect(ValueError, "a parameter is in another unit", lambda: Unit(head))

    module = Unused().to(device)
    Unit(module)
    loss = module(torch.ones(2, 4, device=device)).sum()
    expect(RuntimeError, "after backward a unit is still whole", loss.backward)


def main(cfg: Config) -> None:
    with process_group(seed=cfg.seed, timeout_s=60) as group:
        model = net().to(group.device)  # another one on each rank
        broadcast_from_rank_0(model.parameters())
        torch.manual_seed(cfg.seed)
        alone = net().to(group.device)
        ddp = DistributedDataParallel(copy.deepcopy(alone))
        data = load_images("digits")
        names = {2: "first layer", 4: "layer used twice", 5: "third layer", 7: "last layer"}
        units = {index: Unit(model[index]) for index in names}
        sgd = {"lr": cfg.learning_rate, "momentum": 0.9}
        optimizers = [
            torch.optim.SGD([unit.shard for unit in units.values()], **sgd),
            torch.optim.SGD(ddp.parameters(), **sgd),
            torch.optim.SGD(alone.parameters(), **sgd),
        ]
        for step in range(cfg.steps):
            x, y = batch(data, step, cfg.global_batch, group.device)
            my_x, my_y = x[group.rank :: group.world_size], y[group.rank :: group.world_size]
            with record() as log:
                F.cross_entropy(model(my_x), my_y).backward()
            assert log.counts() == {"all_gather": 2 * len(units), "reduce_scatter": len(units)}, log.counts()
            F.cross_entropy(ddp(my_x), my_y).backward()
            F.cross_entropy(alone(x), y).backward()
            for optimizer in optimizers:
                optimizer.step()
            for index, unit in units.items():
                compare(f"step {step}, {names[index]}, DDP", unit, ddp.module[index], cfg.tolerance)
                compare(f"step {step}, {names[index]}, one process", unit, alone[index], cfg.tolerance)
            for optimizer in optimizers:
                optimizer.zero_grad()
            held = sum(unit.whole.untyped_storage().nbytes() for unit in units.values())
            assert held == 0, "a unit is still whole"
        print_on_rank_0(f"{cfg.steps} steps equal to DDP and to one process; in each {dict(log.counts())}")

        what_a_unit_refuses(group.device)
        print_on_rank_0(
            "refused: a unit in a unit, one tied weight in two units, a parameter that is not used"
        )


if __name__ == "__main__":
    run(main, Config())
