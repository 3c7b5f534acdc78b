# rejected: 3 buckets were sent
"""Fills buckets of 2 MiB, whatever the wire is like."""


def choose_buckets(sizes: list[int], ready: list[float], alpha: float, beta: float) -> list[list[int]]:
    buckets = [[]]
    for index in range(len(sizes))[::-1]:
        if sum(sizes[i] for i in buckets[-1]) >= 2 * 2**20:
            buckets.append([])
        buckets[-1].append(index)
    return buckets
