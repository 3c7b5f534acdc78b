# rejected: a shard has 5 elements, expected 6
"""Rounds the length down, so the last elements are in no shard."""

import torch
import torch.distributed as dist


def shard(whole: torch.Tensor) -> torch.Tensor:
    rank, length = dist.get_rank(), whole.numel() // dist.get_world_size()
    return whole.flatten()[rank * length : (rank + 1) * length].clone()


def gather(mine: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    padded = mine.new_empty(dist.get_world_size() * len(mine))
    dist.all_gather_into_tensor(padded, mine)
    return padded[: shape.numel()].view(shape)
