# rejected: bytes by
"""Sends all tokens to all ranks, and all results back to all."""

from typing import Any

import torch
import torch.distributed as dist


class GatherRows(torch.autograd.Function):
    """(rows, width) of each rank to those of all ranks. As many rows on each."""

    @staticmethod
    def forward(ctx, rows: torch.Tensor) -> torch.Tensor:
        whole = rows.new_empty(len(rows) * dist.get_world_size(), *rows.shape[1:])
        dist.all_gather_into_tensor(whole, rows.contiguous())
        return whole

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size())[dist.get_rank()]


def padded(rows: torch.Tensor, length: int) -> torch.Tensor:
    return torch.cat([rows, rows.new_full((length - len(rows), *rows.shape[1:]), -1)])


def dispatch(tokens: torch.Tensor, chosen: torch.Tensor, experts: int) -> tuple[torch.Tensor, list[int], Any]:
    here = experts // dist.get_world_size()
    longest = torch.tensor(len(tokens))
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    length = int(longest)
    every_token = GatherRows.apply(padded(tokens, length))
    every_chosen = GatherRows.apply(padded(chosen, length))
    parts, places = [], []
    for expert in range(dist.get_rank() * here, (dist.get_rank() + 1) * here):
        token, place = (every_chosen == expert).nonzero(as_tuple=True)
        parts.append(every_token[token])
        places.append(token * chosen.shape[1] + place)
    return torch.cat(parts), [len(part) for part in parts], (torch.cat(places), length)


def combine(results: torch.Tensor, weights: torch.Tensor, way: Any) -> torch.Tensor:
    places, length = way
    rank, k = dist.get_rank(), weights.shape[1]
    boxes = results.new_zeros(length * dist.get_world_size() * k, results.shape[1]).index_copy(
        0, places, results
    )
    every_box = GatherRows.apply(boxes).view(dist.get_world_size(), dist.get_world_size(), length, k, -1)
    own = every_box[:, rank].sum(0)[: len(weights)]
    return (own * weights.unsqueeze(-1)).sum(1)
