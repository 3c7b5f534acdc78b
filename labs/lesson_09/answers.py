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
        old="""
        self._put(index)
        self._launch_in_turn()
        """,
        new="""
        self._put(index)
        everyone, self.process_group = self.process_group, None
        self._launch_in_turn()
        self.process_group = everyone
        """,
        told="two steps, with two groups of ranks: on rank",
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
        old="""
        self._put(index)
        self._launch_in_turn()
        """,
        new="""
        self._put(index)
        self._launch_in_turn()
        for bucket in self.buckets[: self.launched]:
            bucket.work.wait()
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
        old="if not self.follows_arrival:",
        new="if False:",
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
            # Your part begins here.
            """,
        ),
        new=(
            "bucket.missing, bucket.work = set(bucket.indices), None",
            """
            def _launch_in_turn(self) -> None:
                for bucket in self.buckets:
                    if not bucket.missing and bucket.work is None:
                        bucket.work = dist.all_reduce(bucket.flat, group=self.process_group, async_op=True)
            """,
        ),
        told="layers used in different orders on different ranks: on rank",
    ),
    Wrong(
        what="Averages in each backward, also under no_sync().",
        old="if not self.armed:",
        new="if False:",
        told="backward number 1 sent something",
    ),
    Wrong(
        what="Gives zeros to parameters that nobody has used; weight decay would then move them.",
        old="if count > 0 and parameter.grad is None:",
        new="if parameter.grad is None:",
        told="but nobody has used it: it must stay None",
    ),
    Wrong(
        what="Asks all ranks of the world who has used what.",
        old="dist.all_reduce(users, group=self.process_group)",
        new="dist.all_reduce(users)",
        told="with two groups of ranks: on rank 0 the gradient of sometimes.weight is there, but",
    ),
    Wrong(
        what="Asks who has used what only where this rank has left something out.",
        old=(
            """
            for bucket in self.buckets:
                for index in sorted(bucket.missing):
            """,
            "dist.all_reduce(users, group=self.process_group)",
        ),
        new=(
            """
            left_out = any(bucket.missing for bucket in self.buckets)
            for bucket in self.buckets:
                for index in sorted(bucket.missing):
            """,
            """
            if left_out:
                dist.all_reduce(users, group=self.process_group)
            """,
        ),
        told="stuck: ",
    ),
    Wrong(
        what="Forgets a gradient that a second averaged backward does not touch.",
        old="""
        if count > 0 and parameter.grad is None:
        """,
        new="""
        if count == 0:
            parameter.grad = None
        elif parameter.grad is None:
        """,
        told="two averaged backwards in one step: on rank",
    ),
    Wrong(
        what="Asks in backward whether no_sync() is on; DDP asks in forward.",
        old="if not self.armed:",
        new="if not self.sync:",
        told="a forward under no_sync() whose backward comes after it: backward number 1 sent something",
    ),
    Wrong(
        what="Stays armed: a second backward without a forward averages once more, which DDP does not.",
        old="self.armed = False",
        new="",
        told="two forwards, two backwards: 2, equal; with torch's DDP it is 1, WRONG",
    ),
    Right(
        what="Notes each parameter once.",
        old="self.arrived.append(index)",
        new="self.arrived += [index] if index not in self.arrived else []",
    ),
    Right(
        what="Asks who has used what while the buckets are under way; all_reduce by its own name.",
        old=_FINISH,
        new="""
        for bucket in self.buckets:
            for index in sorted(bucket.missing, reverse=True):
                self._put(index)
        self._launch_in_turn()
        users = torch.tensor([index in self.arrived for index in range(len(self.trainable))])
        users = users.to(self.trainable[0].device, torch.int32)
        question = all_reduce(users, op=ReduceOp.MAX, group=self.process_group, async_op=True)
        for bucket in reversed(self.buckets):
            bucket.work.wait()
        question.wait()
        for index in users.nonzero().flatten().tolist():
            if self.trainable[index].grad is None:
                self.trainable[index].grad = self.bucket_of[index].views[index].clone()
        self.armed = False
        """,
        below="from torch.distributed import ReduceOp, all_reduce",
    ),
]
