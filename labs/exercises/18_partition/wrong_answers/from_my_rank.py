# rejected: has another partition than rank 0
"""Each rank begins to fill itself."""

import torch
import torch.distributed as dist


def partition(params: list[torch.Tensor], ranks: int) -> list[list[int]]:
    owned, load = [[] for _ in range(ranks)], [0] * ranks
    for index in sorted(range(len(params)), key=lambda i: -params[i].nbytes):
        rank = min(range(ranks), key=lambda r: (load[r], (r - dist.get_rank()) % ranks))
        owned[rank].append(index)
        load[rank] += params[index].nbytes
    return owned
