# rejected: straggler on rank 2 of 4 ranks: your reason is synchronization, on rank 2
"""Takes any long cudaStreamSynchronize for a fault. At the end of a step it is long because the GPU works."""

from pathlib import Path
from statistics import median

from shared.runtime.loading import load_file

solution = load_file(Path(__file__).parents[1] / "solution.py", "solution_25")


def diagnose(traces):
    reason, rank = solution.diagnose(traces)
    steps = solution.spans(traces[0], "user_annotation", "ProfilerStep")
    waiting = sum(end - start for start, end in solution.spans(traces[0], "cuda_runtime", "cudaStreamSync"))
    if reason != "data" and waiting > len(steps) * median(end - start for start, end in steps) / 4:
        return "synchronization", rank
    return reason, rank
