# rejected: has no owner, so nobody would ever update it
"""Deals back and forth, so that it balances, but only full rounds."""

import torch


def partition(params: list[torch.Tensor], ranks: int) -> list[list[int]]:
    order = sorted(range(len(params)), key=lambda i: -params[i].nbytes)
    owned = [[] for _ in range(ranks)]
    for turn in range(len(params) // ranks):
        hand = order[turn * ranks : (turn + 1) * ranks]
        for rank, index in enumerate(hand if turn % 2 else hand[::-1]):
            owned[rank].append(index)
    return owned
