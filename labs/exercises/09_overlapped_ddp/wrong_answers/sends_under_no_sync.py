# rejected: backward number 1 sent something
"""Averages in each backward, also under no_sync()."""

from pathlib import Path

from shared.runtime.loading import load_file

solution = load_file(Path(__file__).parents[1] / "solution.py", "solution_09")


class OverlappedDDP(solution.OverlappedDDP):
    def _gradient_ready(self, index, parameter):
        self.sync_this = True
        super()._gradient_ready(index, parameter)
