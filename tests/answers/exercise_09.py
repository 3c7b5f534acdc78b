"""Answers to exercise 09."""

from tests.planted import Right, Wrong, solved

_FINISH = solved("09_overlapped_ddp", "_finish")

ANSWERS = [
    Wrong(
        what="Never waits.",
        old="bucket.work.wait()",
        new="pass",
        told="backward ended without waiting for 6 of its all-reduces",
    ),
    Wrong(
        what="Ignores the process group.",
        old="dist.all_reduce(bucket.flat, group=self.process_group, async_op=True)",
        new="dist.all_reduce(bucket.flat, async_op=True)",
        told="with two groups of ranks: on rank",
    ),
    Wrong(
        what="Fills the buckets during backward, and launches them when it is over.",
        old="""
        self._put(index)
        self._launch_in_turn()
        """,
        new="self._put(index)",
        told="0 all-reduces are launched before the last of 6 gradients is ready",
    ),
    Wrong(
        what="Waits for each bucket as soon as it is launched.",
        old="self.launched += 1",
        new="""
        bucket.work.wait()
        self.launched += 1
        """,
        told="backward waits inside a hook until the other ranks join its all-reduce",
    ),
    Wrong(
        what="Divides once more when all has arrived.",
        old="bucket.work.wait()",
        new="""
        bucket.work.wait()
        bucket.flat /= self.ranks
        """,
        told="the first step: on rank 0 the gradient of last.weight is off the mean",
    ),
    Wrong(
        what="Has autograd call _finish once for each gradient.",
        old="if not self.in_backward:",
        new="if True:",
        told="all-reduces in one backward",
    ),
    Wrong(
        what="Keeps the buckets that it began with.",
        old="self._follow_arrival()",
        new="",
        told="let buckets follow the order of arrival",
    ),
    Wrong(
        what="Leaves a parameter without a gradient that another rank has used.",
        old="if count > 0 and parameter.grad is None:",
        new="if False:",
        told="is None, but some rank has used it",
    ),
    Wrong(
        what="Launches each bucket as soon as it is full.",
        old=(
            "bucket.missing = set(bucket.indices)",
            """
            while self.launched < len(self.buckets):
                bucket = self.buckets[self.launched]
                if bucket.missing:
                    return
                bucket.work = dist.all_reduce(bucket.flat, group=self.process_group, async_op=True)
                self.launched += 1
            """,
        ),
        new=(
            "bucket.missing, bucket.work = set(bucket.indices), None",
            """
            for bucket in self.buckets:
                if not bucket.missing and bucket.work is None:
                    bucket.work = dist.all_reduce(bucket.flat, group=self.process_group, async_op=True)
            """,
        ),
        told="layers used in different orders on different ranks: on rank",
    ),
    Wrong(
        what="Averages in each backward, also under no_sync().",
        old="if not self.sync_this:",
        new="if False:",
        told="backward number 1 sent something",
    ),
    Wrong(
        what="Gives zeros to parameters that nobody has used; weight decay would then move them.",
        old="if count > 0 and parameter.grad is None:",
        new="if parameter.grad is None:",
        told="but nobody has used it: it must stay None",
    ),
    Right(
        what="Asks who has used what while the buckets are under way; all_reduce by its own name.",
        old=_FINISH,
        new="""
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
