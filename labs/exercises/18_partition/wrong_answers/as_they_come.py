# rejected: a transformer, 8 ranks: rank
"""Greedy, but in the order in which the parameters come."""

import torch


def partition(params: list[torch.Tensor], ranks: int) -> list[list[int]]:
    owned, load = [[] for _ in range(ranks)], [0] * ranks
    for index, param in enumerate(params):
        rank = load.index(min(load))
        owned[rank].append(index)
        load[rank] += param.nbytes
    return owned
