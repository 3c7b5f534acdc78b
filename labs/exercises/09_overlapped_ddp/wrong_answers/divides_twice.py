# rejected: the first step: on rank 0 the gradient of last.weight is off the mean
"""Divides once more when all has arrived."""

from pathlib import Path

from shared.runtime.loading import load_file

solution = load_file(Path(__file__).parents[1] / "solution.py", "solution_09")


class OverlappedDDP(solution.OverlappedDDP):
    def _finish(self):
        buckets = self.buckets
        super()._finish()
        for bucket in buckets:
            bucket.flat /= self.ranks
