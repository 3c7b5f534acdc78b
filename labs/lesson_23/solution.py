"""Exercise 23: which rows go where, from FSDP's layout to a fused tensor parallel weight."""

from dataclasses import dataclass

Rows = tuple[int, int]  # the first row, and the one behind the last


@dataclass(frozen=True)
class Transfer:
    """Rows that one trainer sends to one generator.

    Attributes:
        name: the trainers' parameter: "q", "k" or "v".
        trainer, generator: who, both counted from 0.
        source: which rows of what this trainer holds of the parameter, counted from 0.
        target: where they go in the fused parameter of this generator, counted from 0.
    """

    name: str
    trainer: int
    generator: int
    source: Rows
    target: Rows


def held(rows: int, trainers: int) -> list[Rows]:
    """Given: which rows of a parameter each trainer holds under FSDP2. The last may hold fewer, or none."""
    most = -(-rows // trainers)
    return [(min(t * most, rows), min((t + 1) * most, rows)) for t in range(trainers)]


def plan(sizes: dict[str, int], trainers: int, generators: int) -> list[Transfer]:
    """All transfers that bring the trainers' weights to the generators. No row travels twice.

    Trainers hold "q", "k" and "v" apart, each divided as ``held`` says. A generator holds one fused
    parameter: its share of the rows of q, then its share of those of k, then of v. Shares are equal and in
    order: of 12 rows, the second of 3 generators has 4 to 7.

    Args:
        sizes: {name: rows of the whole parameter}, in the order in which they are fused. ``generators``
            divides each.
    """
    # solution: begin
    transfers = []
    fused = 0  # where this parameter begins in what a generator holds
    for name, rows in sizes.items():
        share = rows // generators
        for generator in range(generators):
            begin = generator * share
            for trainer, (first, last) in enumerate(held(rows, trainers)):
                low = max(first, begin)
                high = min(last, begin + share)
                if low < high:
                    source = (low - first, high - first)
                    target = (fused + low - begin, fused + high - begin)
                    transfers.append(Transfer(name, trainer, generator, source, target))
        fused += share
    return transfers
    # solution: end
