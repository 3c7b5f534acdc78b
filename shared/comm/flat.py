"""Many tensors, one all-reduce. Taught in lesson 06."""

from collections.abc import Iterable

import torch
import torch.distributed as dist


@torch.no_grad()
def sum_over_ranks(tensors: Iterable[torch.Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Replace each tensor by its sum over the ranks; with no tensors, send nothing. Collective.

    The tensors are copied into one flat buffer, which takes as much memory again, and back. All of them
    must have one dtype and one device.
    """
    tensors = list(tensors)
    if not tensors:
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat, group=group)
    for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(total.view_as(tensor))


@torch.no_grad()
def mean_over_ranks(tensors: Iterable[torch.Tensor]) -> None:
    """Replace each tensor by its mean over the ranks of the world. Collective."""
    tensors = list(tensors)
    sum_over_ranks(tensors)
    for tensor in tensors:
        tensor /= dist.get_world_size()
