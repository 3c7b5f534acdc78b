# rejected: synchronization on all of 3 ranks: your reason is launches, on rank None
"""Does not ask what the CPU did before the GPU had nothing to do."""

from pathlib import Path

from shared.runtime.loading import load_file

solution = load_file(Path(__file__).parents[1] / "solution.py", "solution_25")


def diagnose(traces):
    reason, rank = solution.diagnose(traces)
    if rank is None and reason == "synchronization":
        return "launches", None
    return reason, rank
