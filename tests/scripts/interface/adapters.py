"""What lessons 09, 18 and 19 build, behind the interface that others test theirs through.

The functions have the names and arguments of ``tests/adapters.py`` of Stanford CS336, assignment 2, of 2026
(github.com/stanford-cs336/assignment2-systems), so that its public tests run with this file in its place.
"""

from collections.abc import Iterable, Iterator
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

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.names = {id(p): name for name, p in module.named_parameters()}
        self.units = []
        for layer in module.modules():
            own = list(layer.parameters(recurse=False))
            if any(p.dim() > 1 and p.requires_grad for p in own):
                self.units.append(Unit(layer))
        sharded = {id(p) for unit in self.units for p in unit.params}
        self.whole = [p for p in module.parameters() if id(p) not in sharded]

    def forward(self, *inputs):
        return self.module(*inputs)

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """What an optimizer takes: shards, and what is whole."""
        yield from (unit.shard for unit in self.units)
        yield from self.whole


def get_fsdp(module: nn.Module, compute_dtype: torch.dtype | None = None) -> nn.Module:
    if compute_dtype is not None:
        raise NotImplementedError("the unit of lesson 19 computes in the dtype of its parameters")
    return UnitPerMatrix(module)


@torch.no_grad()
def fsdp_on_after_backward(fsdp_model: UnitPerMatrix, optimizer: torch.optim.Optimizer) -> None:
    for p in fsdp_model.whole:
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


@torch.no_grad()
def fsdp_gather_full_params(fsdp_model: UnitPerMatrix) -> dict[str, torch.Tensor]:
    full = {fsdp_model.names[id(p)]: p.detach() for p in fsdp_model.whole}
    for unit in fsdp_model.units:
        unit.unshard()
        for p in unit.params:
            full[fsdp_model.names[id(p)]] = p.detach().clone()
        unit.reshard()
    return full
