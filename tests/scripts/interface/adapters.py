"""What lessons 09, 18 and 19 build, behind the interface that others test theirs through.

The functions have the names and arguments of ``tests/adapters.py`` of Stanford CS336, assignment 2, of 2026
(github.com/stanford-cs336/assignment2-systems), so that its public tests run with this file in its place.
"""

from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from shared.lesson_18.sharded_optimizer import ShardedOptimizer
from shared.runtime.loading import load_file

LABS = Path(__file__).resolve().parents[3] / "labs"
OverlappedDDP = load_file(LABS / "lab_09_overlapped.py").OverlappedDDP
Unit = load_file(LABS / "lab_19_unit.py").Unit


def get_ddp(module: nn.Module) -> nn.Module:
    return OverlappedDDP(module)


def ddp_on_after_backward(ddp_model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Nothing: the buckets have arrived when backward returns."""


def get_sharded_optimizer(
    params: Iterable, optimizer_cls: type[torch.optim.Optimizer], **kwargs
) -> torch.optim.Optimizer:
    return ShardedOptimizer(params, optimizer_cls, **kwargs)


class UnitPerMatrix(nn.Module):
    """Each layer with a matrix is a unit. Vectors, such as the weight of a norm, are whole on each rank."""

    def __init__(self, module: nn.Module, compute_dtype: torch.dtype | None) -> None:
        super().__init__()
        self.module = module
        names = {p: name for name, p in module.named_parameters()}
        self.units = []
        for layer in module.modules():
            own = list(layer.parameters(recurse=False))
            if any(p.dim() > 1 and p.requires_grad for p in own):
                self.units.append(Unit(layer, compute_dtype))
        self.names = [[names[p] for p in unit.params] for unit in self.units]
        shards = {p for unit in self.units for p in unit.shards}
        self.whole = {name: p for name, p in module.named_parameters() if p not in shards}

    def forward(self, *inputs):
        return self.module(*inputs)


def get_fsdp(module: nn.Module, compute_dtype: torch.dtype | None = None) -> nn.Module:
    return UnitPerMatrix(module, compute_dtype)


@torch.no_grad()
def fsdp_on_after_backward(fsdp_model: UnitPerMatrix, optimizer: torch.optim.Optimizer) -> None:
    for p in fsdp_model.whole.values():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


@torch.no_grad()
def fsdp_gather_full_params(fsdp_model: UnitPerMatrix) -> dict[str, torch.Tensor]:
    full = {name: p.detach() for name, p in fsdp_model.whole.items()}
    for unit, names in zip(fsdp_model.units, fsdp_model.names, strict=True):
        full |= dict(zip(names, unit.full(), strict=True))
    return full
