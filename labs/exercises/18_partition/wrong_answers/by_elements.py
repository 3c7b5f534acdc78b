# rejected: bfloat16 and float32, 2 ranks: rank 1 owns
"""Balances the number of elements."""

import torch


def partition(params: list[torch.Tensor], ranks: int) -> list[list[int]]:
    owned, load = [[] for _ in range(ranks)], [0] * ranks
    for index in sorted(range(len(params)), key=lambda i: (-params[i].numel(), i)):
        rank = load.index(min(load))
        owned[rank].append(index)
        load[rank] += params[index].numel()
    return owned
