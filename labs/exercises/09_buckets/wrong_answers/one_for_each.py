# rejected: 24 all-reduces pay alpha 24 times
"""Launches each gradient by itself."""


def choose_buckets(sizes: list[int], ready: list[float], alpha: float, beta: float) -> list[list[int]]:
    return [[index] for index in range(len(sizes))[::-1]]
