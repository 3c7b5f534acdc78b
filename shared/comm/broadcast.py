"""Rank 0's tensors for everybody, with few messages. Taught in lesson 08."""

from collections.abc import Iterable

import torch
import torch.distributed as dist


@torch.no_grad()
def broadcast_from_rank_0(tensors: Iterable[torch.Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Overwrite ``tensors`` with those of the group's first rank, one broadcast for each dtype and device.

    Collective: each rank passes tensors of the same shapes and dtypes in the same order.
    """
    kinds: dict[tuple, list[torch.Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach())
    for same in kinds.values():
        flat = torch.cat([tensor.flatten() for tensor in same])
        dist.broadcast(flat, group=group, group_src=0)
        for tensor, part in zip(same, flat.split([tensor.numel() for tensor in same]), strict=True):
            tensor.copy_(part.view_as(tensor))
