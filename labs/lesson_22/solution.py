"""Exercise 22: FSDP x CP on a DeviceMesh: who reads what, who sums, and who divides by what."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

IGNORED = -100  # a label that counts for nothing


def own_part(batch: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Return this rank's part of ``batch``, (rows, length): tokens or labels.

    Args:
        mesh: three dimensions. Along dp ranks read other rows, along cp other pieces of the same rows, both
            in order; along tp they read the same.
    """
    # solution: begin
    for dim, name in enumerate(("dp", "cp")):
        batch = batch.chunk(mesh[name].size(), dim)[mesh.get_local_rank(name)]
    return batch
    # solution: end


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """Shard ``model`` by FSDP2, in place: each block of ``model.blocks`` is a unit, and the rest is one.

    A rank keeps 1 / (dp * cp) of each parameter. Ranks along tp keep the same.
    """
    # solution: begin
    joined = mesh["dp", "cp"]._flatten("dp_cp")
    for block in model.blocks:
        fully_shard(block, mesh=joined)
    fully_shard(model, mesh=joined)
    # solution: end


def backward(model: nn.Module, tokens: torch.Tensor, labels: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Return the loss of the whole batch, the same on all ranks; leave its gradient in the model's shards.

    The loss is the mean over all labels of the batch that are not ``IGNORED``. Ranks have different
    numbers of these. The model looks at each position by itself, so no keys or values have to travel: each
    rank computes its own part, once, and beside FSDP's calls only a count and a loss travel.

    Args:
        model: sharded by ``shard``; makes logits, (rows, length, vocabulary).
        tokens, labels: this rank's parts.
    """
    # solution: begin
    group = mesh["dp", "cp"]._flatten("dp_cp").get_group()  # along tp, ranks have the same tokens
    count = (labels != IGNORED).sum()
    dist.all_reduce(count, group=group)
    logits = model(tokens).flatten(0, 1)
    total = F.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction="sum")
    loss = total / count
    (loss * dist.get_world_size(group)).backward()  # FSDP takes the mean over these ranks
    loss = loss.detach().clone()
    dist.all_reduce(loss, group=group)
    return loss
    # solution: end
