"""Exercise 29: the units of a model with tied weights, and a step in pieces."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

IGNORED = -100  # a label that counts for nothing


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """Shard the model over ``mesh``, in place.

    ``model`` has ``embed``, ``blocks`` (a ``ModuleList``), ``norm`` and ``head``. The weight of ``head`` is
    that of ``embed``: one parameter. At no moment may more be whole than one block and what is in none.
    Forward and backward pass together gather each block twice and the rest once or twice.
    """
    # solution: begin
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)  # embedding, norm and head, with the one weight that they share
    # solution: end


def backward(model: FSDPModule, pieces: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Leave in ``.grad`` the gradient of the mean loss over all labels of all pieces of all ranks.

    Each piece has tokens and labels, (rows, length); ``model(tokens)`` returns logits. Each rank has the same
    number of pieces, but another number of labels that count. Gradients travel once, with the last piece.
    """
    # solution: begin
    count = sum((labels != IGNORED).sum() for _, labels in pieces)
    dist.all_reduce(count)
    for number, (tokens, labels) in enumerate(pieces, start=1):
        model.set_requires_gradient_sync(number == len(pieces))
        logits = model(tokens).flatten(0, 1)
        loss = F.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction="sum")
        (loss * dist.get_world_size() / count).backward()  # FSDP divides by the ranks
    # solution: end
