# rejected: the first step: on rank 0 the gradient of last.weight is off
"""Waits for the buckets that are full, and leaves the others."""

from pathlib import Path

from shared.runtime.loading import load_file

solution = load_file(Path(__file__).parents[1] / "solution.py", "solution_09")


class OverlappedDDP(solution.OverlappedDDP):
    def _finish(self):
        for bucket in self.buckets[: self.launched]:
            bucket.work.wait()
        self._follow_arrival()
        for bucket in self.buckets:
            bucket.missing = set(bucket.indices)
        self.launched = 0
        self.used = []
        self.in_backward = False
