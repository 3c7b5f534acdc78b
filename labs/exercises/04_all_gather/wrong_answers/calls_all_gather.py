# rejected: the result is right, but it comes from all_gather; use single messages
"""The right values without a message of its own."""

import torch
import torch.distributed as dist


def all_gather(piece: torch.Tensor) -> torch.Tensor:
    pieces = [torch.empty_like(piece) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, piece)
    return torch.cat(pieces)
