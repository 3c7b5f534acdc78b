# rejected: 0 all-reduces are launched before the last of 6 gradients is ready
"""Fills the buckets during backward, and launches them when it is over."""

from pathlib import Path

from shared.runtime.loading import load_file

solution = load_file(Path(__file__).parents[1] / "solution.py", "solution_09")


class OverlappedDDP(solution.OverlappedDDP):
    def _gradient_ready(self, index, parameter):
        self.launched = len(self.buckets)  # as if there was nothing left to launch
        super()._gradient_ready(index, parameter)

    def _finish(self):
        self.launched = 0
        super()._finish()
