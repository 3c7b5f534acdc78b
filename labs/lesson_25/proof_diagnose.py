"""Why is this run slow? A decision tree asks the traces of all ranks, and names a part of the step and ranks.

Run it:      python labs/lesson_25/proof_diagnose.py FOLDER
"""

import sys
from collections import Counter
from pathlib import Path
from statistics import mean, median

from shared.runtime.errors import InputError
from shared.runtime.run import run

from lesson_25.proof_reader import (
    COMPUTE,
    DATA,
    EVALUATION,
    IDLE,
    STEP,
    TRANSFER,
    Trace,
    last_to_come,
    parts,
    read_folder,
    waits,
)

NOTABLE = 0.1  # of a step
MOST = 2 / 3  # of the steps in which somebody is late: then it is that rank, else they take turns
OWN = (DATA, EVALUATION, COMPUTE, IDLE)  # what a rank does without the others


def diagnose(traces: list[Trace]) -> tuple[str, tuple[int, ...]]:
    """(part of the step that is to blame, ranks): one rank, those that are late by turns, or none.

    1. Is somebody late in most steps, so that the others wait a notable part of the step? What does that
       rank do more of than the others, in the steps in which it is the last?
    2. If not: what takes the largest part of a step? Of communication, what nothing hides.
    """
    steps = [parts(trace, waiting) for trace, waiting in zip(traces, waits(traces), strict=True)]
    late = {}  # {step: rank}
    for number, (rank, wait) in enumerate(last_to_come(traces)):
        if wait > NOTABLE * steps[0][number][STEP]:
            late[number] = rank
    if 2 * len(late) > len(steps[0]):
        times = Counter(late.values())
        (rank, most), *_ = times.most_common()
        ranks = (rank,) if most > MOST * len(late) else tuple(sorted(times))
        more = dict.fromkeys(OWN, 0.0)
        for number, rank in late.items():
            if rank in ranks:
                others = [own[number] for other, own in enumerate(steps) if other != rank]
                for part in OWN:
                    more[part] += steps[rank][number][part] - median(step[part] for step in others)
        return max(more, key=more.__getitem__), ranks
    seconds = {}
    for part in (*OWN, TRANSFER):
        seconds[part] = mean(step[part] for own in steps for step in own)
    return max(seconds, key=seconds.__getitem__), ()


def verdict(traces: list[Trace]) -> str:
    part, ranks = diagnose(traces)
    if not ranks:
        return f"{part}, on all ranks alike"
    if len(ranks) == 1:
        return f"{part}, on rank {ranks[0]}, and the others wait for it"
    return f"{part}, on ranks {', '.join(map(str, ranks))} by turns, and the others wait"


def main() -> None:
    if len(sys.argv) != 2:
        raise InputError("name the folder that holds the traces of one run")
    print(verdict(read_folder(Path(sys.argv[1]))))


if __name__ == "__main__":
    run(main)
