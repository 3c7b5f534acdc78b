# rejected: data on rank 1 of 3 ranks: your rank is None
"""Names the reason and leaves the rank to others."""

from pathlib import Path

from shared.runtime.loading import load_file

solution = load_file(Path(__file__).parents[1] / "solution.py", "solution_25")


def diagnose(traces):
    return solution.diagnose(traces)[0], None
