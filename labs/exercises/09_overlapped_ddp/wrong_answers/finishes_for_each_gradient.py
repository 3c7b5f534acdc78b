# rejected: all-reduces in one backward
"""Has autograd call _finish once for each gradient."""

from pathlib import Path

from shared.runtime.loading import load_file

solution = load_file(Path(__file__).parents[1] / "solution.py", "solution_09")


class OverlappedDDP(solution.OverlappedDDP):
    def _gradient_ready(self, index, parameter):
        self.in_backward = False
        super()._gradient_ready(index, parameter)
