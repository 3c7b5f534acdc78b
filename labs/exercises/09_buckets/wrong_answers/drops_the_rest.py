# rejected: parameter 0 is in no bucket, so its gradient is never averaged
"""Starts a new bucket when one is full, and forgets the one that never becomes full."""


def choose_buckets(sizes: list[int], ready: list[float], alpha: float, beta: float) -> list[list[int]]:
    buckets, bucket = [], []
    for index in range(len(sizes))[::-1]:
        bucket.append(index)
        if len(bucket) == 5:
            buckets.append(bucket)
            bucket = []
    return buckets
