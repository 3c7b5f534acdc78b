# rejected: a transformer, 2 ranks: rank 1 owns
"""Deals the parameters out like cards."""

import torch


def partition(params: list[torch.Tensor], ranks: int) -> list[list[int]]:
    return [list(range(rank, len(params), ranks)) for rank in range(ranks)]
