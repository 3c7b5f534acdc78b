"""Exercise 09: a DDP that communicates during the backward pass, and stands in for torch's.

It extends the class of ``lab_09_overlapped.py``. Write the two methods at the end.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable

from labs import lab_09_overlapped as lab


class OverlappedDDP(lab.OverlappedDDP):
    """A forward arms one backward, unless it runs under ``no_sync()``. When that backward returns, ``p.grad``
    is the mean over the ranks, for each parameter p that some rank has used since the last average. Others
    keep what they have, as in DDP with ``find_unused_parameters=True``.

    Attributes that the two methods need, beside ``trainable``, ``buckets`` and ``bucket_of`` of the lab:
        armed: whether the next backward averages. ``forward`` sets it, ``_finish`` clears it.
        arrived: indices of parameters that got a gradient since the last average, in the order of arrival.
        in_backward: whether an averaging backward is under way.
    """

    def __init__(
        self,
        module: nn.Module,
        bucket_cap_mb: float | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(module, bucket_cap_mb, process_group)
        self.sync = True
        self.sync_buffers = True
        self.in_backward = False

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """What is forwarded in here adds to this rank's own gradients. The next average includes it."""
        before = self.sync
        self.sync = False
        try:
            yield
        finally:
            self.sync = before

    def forward(self, *inputs, **kwargs):
        if self.sync_buffers:
            lab.broadcast_from_rank_0(self.module.buffers(), self.process_group)
        self.sync_buffers = self.sync and torch.is_grad_enabled()  # as DDP: after a forward that syncs
        if torch.is_grad_enabled():  # an evaluation before backward changes nothing for that backward
            self.armed = self.sync
        return self.module(*inputs, **kwargs)

    @torch.no_grad()
    def _put(self, index: int) -> None:
        """Divide a gradient by the number of ranks and put it into its bucket; None counts as zeros.

        From then on ``p.grad``, unless it is None, is the view of the bucket: nothing has to be copied back.
        """
        parameter = self.trainable[index]
        bucket = self.bucket_of[index]
        view = bucket.views[index]
        if parameter.grad is None:
            view.zero_()
        else:
            torch.div(parameter.grad, self.ranks, out=view)
            parameter.grad = view
        bucket.missing.remove(index)

    def _prepare_next(self) -> None:
        """Forget this backward. After the first average, new buckets in rank 0's order of arrival."""
        for bucket in self.buckets:
            bucket.missing = set(bucket.indices)
        if not self.follows_arrival:
            backwards = reversed(range(len(self.trainable)))  # what has not arrived comes last
            order = list(dict.fromkeys([*self.arrived, *backwards]))
            agreed = torch.tensor(order, device=self.trainable[0].device)
            dist.broadcast(agreed, group=self.process_group, group_src=0)
            self._make_buckets(agreed.tolist())
            self.follows_arrival = True
        self.launched = 0
        self.arrived = []
        self.in_backward = False

    # Your part begins here.

    def _gradient_ready(self, index: int, parameter: nn.Parameter) -> None:
        """The hook. Autograd calls it when the gradient of ``trainable[index]`` is complete in this backward.

        Note in ``arrived`` that the parameter is used, also in a backward that does not average. In one that
        does: have autograd call ``_finish`` when this backward is over, once; put the gradient into its
        bucket; launch what is full and whose turn it is.
        """
        # solution: begin
        self.arrived.append(index)
        if not self.armed:
            return
        if not self.in_backward:
            self.in_backward = True
            Variable._execution_engine.queue_callback(self._finish)
        self._put(index)
        self._launch_in_turn()
        # solution: end

    def _finish(self) -> None:
        """The end of backward.

        1. Put what this rank has not used into the buckets, and launch the rest.
        2. Find out which parameters some rank has used. One that this rank has not, but another has, gets
           its gradient from the bucket. One that nobody has used keeps what it has.
        3. Wait for all buckets.
        4. Clear ``armed``: without a new forward, the next backward does not average.
        """
        # solution: begin
        for bucket in self.buckets:
            for index in sorted(bucket.missing):
                self._put(index)
        self._launch_in_turn()
        users = torch.zeros(len(self.trainable), device=self.trainable[0].device)
        users[self.arrived] = 1
        dist.all_reduce(users, group=self.process_group)
        for bucket in self.buckets:
            bucket.work.wait()
        for index, count in enumerate(users.tolist()):
            parameter = self.trainable[index]
            if count > 0 and parameter.grad is None:
                parameter.grad = self.bucket_of[index].views[index]
        self.armed = False
        # solution: end
        self._prepare_next()
