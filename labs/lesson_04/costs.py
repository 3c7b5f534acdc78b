"""What each collective costs: bytes of the busiest rank as parts of the whole tensor S, and steps."""

from math import ceil, log2

from shared.runtime.errors import CourseError


def least_bytes(n: int) -> dict[str, float]:
    """The least that the busiest of n ranks must send or receive, as parts of S."""
    one = (n - 1) / n
    moving = {"broadcast": 1, "scatter": one, "gather": one, "all_gather": one, "all_to_all": one}
    return moving | {"reduce": 1, "all_reduce": 2 * one, "reduce_scatter": one}


def of_gloo(n: int) -> dict[str, float]:
    """What gloo's algorithms carry: the least, with three exceptions."""
    least = least_bytes(n)
    return least | {
        "broadcast": ceil(log2(n)),  # a tree, whose root sends so many copies
        "reduce": max(1, 2 * least["reduce_scatter"]),  # a reduce_scatter, then a gather
        "reduce_scatter": least["all_reduce"],  # an all_reduce, of which each rank keeps a piece
    }


def our_steps(n: int) -> dict[str, int]:
    """How many messages one after another our versions take by design."""
    return dict.fromkeys(least_bytes(n), n - 1) | {"all_gather": 2 * (n - 1), "all_reduce": 2 * (n - 1)}


def within_headers(wire: float, expected: float, whole: int) -> bool:
    """Whether a count of the sockets is ``expected``, give or take 2 % and 4 KiB for gloo's headers."""
    return abs(wire - expected) <= 0.02 * expected + 4096 / whole


def table(ranks: list[dict]) -> list[str]:
    """Print the costs that ``proof_by_hand`` recorded; return which of ours carry more than the minimum.

    Raises ``CourseError`` where a number is below the minimum, or gloo's is not what its algorithm carries.
    """
    n, whole = len(ranks), ranks[0]["whole"]
    above = []
    print(f"{'bytes / S, busiest rank':24}{'minimum':>9}{'by hand':>9}{'gloo':>7}    steps: minimum  by hand")
    for name, least in least_bytes(n).items():
        rows = [rank["groups"][str(list(range(n)))][name] for rank in ranks]
        ours = max(max(row["sent"], row["received"]) for row in rows) / whole
        wire = max(row["wire"] for row in rows) / whole  # 0 where nobody counts: not Linux, or not gloo
        if ours < least - 1e-12:
            raise CourseError(f"{name} by hand carries {ours}, less than the minimum, {least}")
        if wire and not within_headers(wire, of_gloo(n)[name], whole):
            raise CourseError(f"{name} of gloo carries {wire}, expected {of_gloo(n)[name]}")
        if ours > least + 1e-12:
            above.append(name)
        bytes_ = f"{least:9.2f}{ours:9.2f}{wire or float('nan'):7.2f}"
        print(f"{name:24}{bytes_}{ceil(log2(n)):18}{our_steps(n)[name]:9}")
    return above
