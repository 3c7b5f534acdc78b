# rejected: data on all of 2 ranks: your rank is
"""Compares times of machines whose clocks differ by seconds."""

from collections import Counter
from pathlib import Path

from shared.runtime.loading import load_file

solution = load_file(Path(__file__).parents[1] / "solution.py", "solution_25")


def diagnose(traces):
    reason, _ = solution.diagnose(traces)
    collectives = [solution.spans(trace, "kernel", "nccl") for trace in traces]
    last = Counter()
    for calls in zip(*collectives, strict=True):
        entered = [start for start, _ in calls]
        if max(entered) - min(entered) > 0.02:
            last[entered.index(max(entered))] += 1
    for rank, count in last.items():
        if count > len(collectives[0]) / 2:
            return reason, rank
    return reason, None
