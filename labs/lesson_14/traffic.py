"""What each way of lesson 14 sends in a step, by the formulas of lesson 05; ``proof_ways`` counts it."""

from dataclasses import dataclass

from shared.comm.record import least_bytes

from lesson_14.workers import MATRICES, SIZES, WAYS, shrinks

NUMEL = sum(SIZES)


@dataclass(frozen=True)
class Traffic:
    """What a rank sends in a step, on average."""

    bytes: float
    messages: float  # one after the other, if each call is a ring


def traffic(way: str, ranks: int, itemsize: int = 4) -> Traffic:
    """Of a rank among ``ranks``, with numbers of ``itemsize`` bytes."""
    dense = least_bytes("all_reduce", itemsize * NUMEL, ranks)
    ring = 2 * (ranks - 1)
    kind, every = WAYS[way].kind, WAYS[way].every
    if kind == "bf16":
        return Traffic(dense * 2 / itemsize, ring)
    if kind == "PowerSGD":
        rank = int(way.rpartition(" ")[2])
        numbers = sum(out for out, _ in MATRICES)  # the biases
        for out, size in MATRICES:
            numbers += rank * (out + size) if shrinks((out, size), rank) else out * size
        return Traffic(dense * numbers / NUMEL, 3 * ring)
    if kind.startswith("top-k"):
        pairs = int(float(way.split()[1]) / 100 * NUMEL)
        return Traffic(least_bytes("all_gather", pairs * (itemsize + 4), ranks), 2 * (ranks - 1))
    return Traffic(dense / every, ring / every)
