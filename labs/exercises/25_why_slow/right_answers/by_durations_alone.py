# accepted: finds the late rank without any clock: its collectives are the short ones
"""How long a collective lasts does not depend on the clocks."""

from pathlib import Path
from statistics import median

from shared.runtime.loading import load_file

solution = load_file(Path(__file__).parents[1] / "solution.py", "solution_25")


def late_rank(traces):
    collectives = [solution.spans(trace, "kernel", "nccl") for trace in traces]
    steps = solution.spans(traces[0], "user_annotation", "ProfilerStep")
    notable = median(end - start for start, end in steps) / 5
    shortest = []
    for calls in zip(*collectives, strict=True):
        lengths = [end - start for start, end in calls]
        if max(lengths) - min(lengths) > notable:
            shortest.append(lengths.index(min(lengths)))
    for rank in range(len(traces)):
        if shortest.count(rank) > len(steps) / 2:
            return rank
    return None


solution.late_rank = late_rank


def diagnose(traces):
    return list(solution.diagnose(traces))
