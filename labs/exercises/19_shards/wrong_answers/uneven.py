# rejected: all must be equally long
"""Hands out the rest one by one, so some shards are longer."""

import torch
import torch.distributed as dist


def shard(whole: torch.Tensor) -> torch.Tensor:
    return whole.flatten().tensor_split(dist.get_world_size())[dist.get_rank()].clone()


def gather(mine: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    padded = mine.new_empty(dist.get_world_size() * len(mine))
    dist.all_gather_into_tensor(padded, mine)
    return padded[: shape.numel()].view(shape)
