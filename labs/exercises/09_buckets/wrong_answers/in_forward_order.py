# rejected: the first bucket holds parameter 0, whose gradient is ready last
"""Buckets of four, in the order of forward."""


def choose_buckets(sizes: list[int], ready: list[float], alpha: float, beta: float) -> list[list[int]]:
    return [list(range(len(sizes)))[i : i + 4] for i in range(0, len(sizes), 4)]
