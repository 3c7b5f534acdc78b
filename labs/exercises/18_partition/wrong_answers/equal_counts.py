# rejected: a net that widens, 2 ranks: rank 1 owns
"""Cuts the list of parameters into pieces of equal length."""

import torch


def partition(params: list[torch.Tensor], ranks: int) -> list[list[int]]:
    cuts = [rank * len(params) // ranks for rank in range(ranks + 1)]
    return [list(range(a, b)) for a, b in zip(cuts, cuts[1:], strict=False)]
