# rejected: communication on all of 4 ranks: your reason is data, on rank None
"""Counts all seconds of the data loader, also those in which the GPU is busy."""

from pathlib import Path
from statistics import median

from shared.runtime.loading import load_file

solution = load_file(Path(__file__).parents[1] / "solution.py", "solution_25")


def diagnose(traces):
    reason, rank = solution.diagnose(traces)
    loads = solution.spans(traces[0], "user_annotation", "enumerate(DataLoader)")
    steps = solution.spans(traces[0], "user_annotation", "ProfilerStep")
    share = median(end - start for start, end in loads) / median(end - start for start, end in steps)
    if rank is None and share > 0.3:
        return "data", None
    return reason, rank
