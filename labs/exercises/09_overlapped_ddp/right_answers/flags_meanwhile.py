# accepted: asks who has used what while the buckets are under way, by another name of all_reduce
"""Launches the question before the buckets that are left, and waits in reverse."""

from pathlib import Path

import torch
from torch.distributed import ReduceOp, all_reduce

from shared.runtime.loading import load_file

solution = load_file(Path(__file__).parents[1] / "solution.py", "solution_09")


class OverlappedDDP(solution.OverlappedDDP):
    def _launch_in_turn(self):
        full = [not bucket.missing for bucket in self.buckets]
        while self.launched < len(full) and full[self.launched]:
            bucket = self.buckets[self.launched]
            bucket.work = all_reduce(bucket.flat, group=self.process_group, async_op=True)
            self.launched += 1

    def _finish(self):
        for bucket in self.buckets:
            for index in sorted(bucket.missing, reverse=True):
                self._put(index)
        self._launch_in_turn()
        users = torch.tensor([index in self.used for index in range(len(self.trainable))], dtype=torch.int32)
        users = users.to(self.trainable[0].device)
        question = all_reduce(users, op=ReduceOp.MAX, group=self.process_group, async_op=True)
        for bucket in reversed(self.buckets):
            bucket.work.wait()
        question.wait()
        for index in users.nonzero().flatten().tolist():
            if self.trainable[index].grad is None:
                self.trainable[index].grad = self.bucket_of[index].views[index].clone()
        self._follow_arrival()
        for bucket in self.buckets:
            bucket.missing.update(bucket.indices)
        self.launched = 0
        self.used.clear()
        self.in_backward = False
