# rejected: chose other buckets than rank 0
"""Each rank chooses for itself, as from times that it has measured."""

import torch.distributed as dist


def choose_buckets(sizes: list[int], ready: list[float], alpha: float, beta: float) -> list[list[int]]:
    backwards, size = list(range(len(sizes)))[::-1], 4 + dist.get_rank()
    return [backwards[i : i + size] for i in range(0, len(sizes), size)]
