# accepted: rank 0, which nobody waits for, computes I and W in one; its list is a generator
"""Where I and W follow each other and nobody waits, a B does as well."""

from pathlib import Path

from shared.runtime.loading import load_file

solution = load_file(Path(__file__).parents[1] / "solution.py", "solution_16")


def schedule(rank, ranks, micro_batches):
    for kind, number in solution.schedule(rank, ranks, micro_batches):
        if rank > 0:
            yield [kind, number]
        elif kind != "W":
            yield ["B" if kind == "I" else kind, number]
