# rejected: the shard is [0.0
"""Puts the padding before the first element."""

import torch
import torch.distributed as dist


def shard(whole: torch.Tensor) -> torch.Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    length = -(-whole.numel() // n)
    padded = whole.new_zeros(n * length)
    padded[len(padded) - whole.numel() :] = whole.flatten()
    return padded[rank * length : (rank + 1) * length].clone()


def gather(mine: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    padded = mine.new_empty(dist.get_world_size() * len(mine))
    dist.all_gather_into_tensor(padded, mine)
    return padded[: shape.numel()].view(shape)
