# rejected: data on all of 2 ranks: your reason is straggler, on rank 1
"""Looks at the first step alone, in which something else delayed a rank."""

from pathlib import Path

from shared.runtime.loading import load_file

solution = load_file(Path(__file__).parents[1] / "solution.py", "solution_25")


def only_the_first(trace):
    step = solution.spans(trace, "user_annotation", "ProfilerStep")[0]
    begin, end = 1e6 * step[0], 1e6 * step[1]
    events = [one for one in trace["traceEvents"] if one["ph"] == "X" and begin <= one["ts"] < end]
    return {"traceEvents": events}


def diagnose(traces):
    return solution.diagnose([only_the_first(trace) for trace in traces])
