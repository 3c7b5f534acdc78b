"""Answers to exercise 09; the form is described in ``tests/answers/__init__.py``."""

from tests.answers import right, wrong

ANSWERS = [
    wrong(
        "Never waits.",
        "backward ended without waiting for 6 of its all-reduces",
        ("bucket.work.wait()", "pass"),
    ),
    wrong(
        "Waits for the last bucket only.",
        "backward ended without waiting for 5 of its all-reduces",
        (
            "bucket.work.wait()",
            """
            if bucket is self.buckets[-1]:
                bucket.work.wait()
            """,
        ),
    ),
    wrong(
        "Follows the order of arrival before the unused get their views.",
        "a first step in which the last rank alone uses a layer: on rank 0 the gradient of sometimes",
        (
            "for index, count in enumerate(users.tolist()):",
            """
            self._follow_arrival()
            for index, count in enumerate(users.tolist()):
            """,
        ),
    ),
    wrong(
        "Divides the last bucket twice from the second step on.",
        "a second one in which rank 0 alone uses it: on rank 0 the gradient of",
        (
            "bucket.work.wait()",
            """
            bucket.work.wait()
            if self.follows_arrival and bucket is self.buckets[-1]:
                bucket.flat /= self.ranks
            """,
        ),
    ),
    wrong(
        "Ignores the process group.",
        "with two groups of ranks: on rank",
        (
            "dist.all_reduce(bucket.flat, group=self.process_group, async_op=True)",
            "dist.all_reduce(bucket.flat, async_op=True)",
        ),
    ),
    wrong(
        "Fills the buckets during backward, and launches them when it is over.",
        "0 all-reduces are launched before the last of 6 gradients is ready",
        (
            """
            self._put(index)
            self._launch_in_turn()
            """,
            "self._put(index)",
        ),
    ),
    wrong(
        "Waits for each bucket as soon as it is launched.",
        "backward waits inside a hook until the other ranks join its all-reduce",
        (
            "self.launched += 1",
            """
            bucket.work.wait()
            self.launched += 1
            """,
        ),
    ),
    wrong(
        "Divides once more when all has arrived.",
        "the first step: on rank 0 the gradient of last.weight is off the mean",
        (
            "bucket.work.wait()",
            """
            bucket.work.wait()
            bucket.flat /= self.ranks
            """,
        ),
    ),
    wrong(
        "Has autograd call _finish once for each gradient.",
        "all-reduces in one backward",
        ("if not self.in_backward:", "if True:"),
    ),
    wrong(
        "Notes only what the averaging backward itself has used.",
        "a layer used only under no_sync(): on rank",
        ("if index not in self.used:", "if self.sync_this and index not in self.used:"),
    ),
    wrong(
        "Waits for the buckets that are full, and leaves the others.",
        "the first step: on rank 0 the gradient of last.weight is off",
        _finish="""
        for bucket in self.buckets[: self.launched]:
            bucket.work.wait()
        """,
    ),
    wrong(
        "Each forward decides whether the next backward averages, even one without gradients.",
        "a forward under no_grad between forward and backward: on rank",
        (
            """
            if torch.is_grad_enabled():  # an evaluation before backward changes nothing for that backward
                self.sync_this = self.sync
            """,
            "self.sync_this = self.sync and torch.is_grad_enabled()",
        ),
    ),
    wrong(
        "Keeps the buckets that it began with.",
        "let buckets follow the order of arrival",
        ("self._follow_arrival()", ""),
    ),
    wrong(
        "Leaves a parameter without a gradient that another rank has used.",
        "is None, but some rank has used it",
        ("if count > 0 and parameter.grad is None:", "if False:"),
    ),
    wrong(
        "Launches each bucket as soon as it is full.",
        "layers used in different orders on different ranks: on rank",
        ("bucket.missing = set(bucket.indices)", "bucket.missing, bucket.work = set(bucket.indices), None"),
        (
            """
            while self.launched < len(self.buckets):
                bucket = self.buckets[self.launched]
                if bucket.missing:
                    return
                bucket.work = dist.all_reduce(bucket.flat, group=self.process_group, async_op=True)
                self.launched += 1
            """,
            """
            for bucket in self.buckets:
                if not bucket.missing and bucket.work is None:
                    bucket.work = dist.all_reduce(bucket.flat, group=self.process_group, async_op=True)
            """,
        ),
    ),
    wrong(
        "Averages in each backward, also under no_sync().",
        "backward number 1 sent something",
        ("if not self.sync_this:", "if False:"),
    ),
    wrong(
        "Gives zeros to parameters that nobody has used; a weight decay or momentum would then move them.",
        "but nobody has used it: it must stay None",
        ("if count > 0 and parameter.grad is None:", "if parameter.grad is None:"),
    ),
    right(
        "Asks who has used what while the buckets are under way; all_reduce by its own name.",
        _finish="""
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
        """,
        below="from torch.distributed import ReduceOp, all_reduce",
    ),
]
