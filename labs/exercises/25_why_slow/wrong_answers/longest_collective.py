# rejected: data on rank 1 of 3 ranks: your rank is 2
"""Takes the rank whose collectives are long for the late one. It is the one that waits."""

from pathlib import Path
from statistics import median

from shared.runtime.loading import load_file

solution = load_file(Path(__file__).parents[1] / "solution.py", "solution_25")


def longest(traces):
    lengths = []
    for trace in traces:
        calls = solution.spans(trace, "kernel", "nccl")
        lengths.append(median(end - start for start, end in calls))
    if max(lengths) - min(lengths) < 0.02:
        return None
    return lengths.index(max(lengths))


def diagnose(traces):
    reason, _ = solution.diagnose(traces)
    return reason, longest(traces)
