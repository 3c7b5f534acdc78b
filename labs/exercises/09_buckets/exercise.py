"""Exercise 09: which gradients travel together?"""


def seconds(
    buckets: list[list[int]], sizes: list[int], ready: list[float], alpha: float, beta: float
) -> float:
    """Seconds from the start of backward to the end of the last all-reduce. Given, for you to use.

    Buckets are sent in the order of the list, one at a time. Each waits for all of its gradients.
    """
    done = 0.0
    for bucket in buckets:
        done = max([done, *(ready[i] for i in bucket)]) + alpha + beta * sum(sizes[i] for i in bucket)
    return done


def choose_buckets(sizes: list[int], ready: list[float], alpha: float, beta: float) -> list[list[int]]:
    """Return buckets of parameters, in the order in which they are to be sent.

    Args:
        sizes: bytes of each parameter's gradient, in the order of forward.
        ready: when that gradient is complete, in seconds since backward began. The last is ready first.
        alpha, beta: an all-reduce of S bytes takes alpha + beta * S seconds.

    Each parameter, named by its position in ``sizes``, is in exactly one bucket. The target: at most 8 %
    above the best of all ways to cut the row of gradients into buckets.
    """
    raise NotImplementedError  # your turn: replace this line
