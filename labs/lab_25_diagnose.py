"""Why is this run slow? A decision tree asks the traces of all ranks, and names a reason and a rank.

Run it:      python labs/lab_25_diagnose.py FOLDER
Written by:  notebooks/25_see_it.ipynb
"""

import sys
from pathlib import Path
from statistics import mean, median

from lab_25_reader import (
    COMMUNICATION,
    COMPUTE,
    DATA,
    EVALUATION,
    IDLE,
    OVERLAP,
    STEP,
    Trace,
    last_to_come,
    parts,
    read_folder,
)

from shared.runtime.errors import InputError
from shared.runtime.run import run

NOTABLE = 0.1  # of a step


def late_rank(traces: list[Trace]) -> int | None:
    """The rank that comes last in most steps, if the first one waits for a notable part of the step."""
    steps = parts(traces[0])
    late = []
    for (rank, wait), step in zip(last_to_come(traces), steps, strict=True):
        if wait > NOTABLE * step[STEP]:
            late.append(rank)
    for trace in traces:
        if 2 * late.count(trace.rank) > len(steps):
            return trace.rank
    return None


def diagnose(traces: list[Trace]) -> tuple[str, int | None]:
    """(part of the step that is to blame, rank), where the rank is None if all ranks are alike.

    1. Does one rank keep the others waiting? Then its communication is short, and that of the others is long
       because of it. What does this rank do more of than the others?
    2. If none does: what takes the largest part of a step? Communication counts as far as nothing hides it.
    """
    own_parts = (DATA, EVALUATION, COMPUTE, IDLE)
    means = []
    for trace in traces:
        steps = parts(trace)
        means.append({part: mean(step[part] for step in steps) for part in steps[0]})
    rank = late_rank(traces)
    if rank is not None:
        others = [one for number, one in enumerate(means) if number != rank]
        more = {part: means[rank][part] - median(one[part] for one in others) for part in own_parts}
        return max(more, key=more.__getitem__), rank
    seconds = {part: mean(one[part] for one in means) for part in own_parts}
    seconds[COMMUNICATION] = mean(one[COMMUNICATION] - one[OVERLAP] for one in means)
    return max(seconds, key=seconds.__getitem__), None


def main() -> None:
    if len(sys.argv) != 2:
        raise InputError("name the folder that holds the traces of one run")
    part, rank = diagnose(read_folder(Path(sys.argv[1])))
    where = "on all ranks alike" if rank is None else f"on rank {rank}, and the others wait for it"
    print(f"{part}, {where}")


if __name__ == "__main__":
    run(main)
