"""The usual wrapping of fully_shard: each block is a unit, the root is one with what is left."""

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


def shard_units(model: nn.Module, mesh: DeviceMesh | None = None, **options: Any) -> nn.Module:
    """From the inside out: each of ``model.blocks``, then ``model``. ``options`` are those of fully_shard."""
    for unit in model.blocks.children():
        fully_shard(unit, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)
