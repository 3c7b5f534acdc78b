# rejected: one bucket waits for the last gradient, and nothing is hidden
"""Flat: all gradients in one all-reduce."""


def choose_buckets(sizes: list[int], ready: list[float], alpha: float, beta: float) -> list[list[int]]:
    return [list(range(len(sizes)))[::-1]]
