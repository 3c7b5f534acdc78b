"""Exercise 09: a DDP that communicates while backward goes on, and stands in for torch's.

Nearly all of it is given. Write the two methods at the end.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable

MIB = 2**20


@torch.no_grad()
def broadcast_from_rank_0(tensors: Iterable[torch.Tensor], group: dist.ProcessGroup | None) -> None:
    """Overwrite ``tensors`` with those of the group's first rank, one message for each dtype."""
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        by_dtype.setdefault(tensor.dtype, []).append(tensor)
    for same in by_dtype.values():
        flat = torch.cat([tensor.flatten() for tensor in same])
        dist.broadcast(flat, group=group, group_src=0)
        for tensor, part in zip(same, flat.split([tensor.numel() for tensor in same]), strict=True):
            # By .data, as in DDP: a backward that is still to come does not mind that a buffer has changed.
            tensor.data.copy_(part.view_as(tensor))


def fill_buckets(parameters: list[nn.Parameter], order: list[int], caps: list[float]) -> list[list[int]]:
    """Positions of parameters, in this order, cut into buckets of one dtype.

    A bucket is closed when it *reaches* its cap in bytes: ``caps[0]`` for the first, ``caps[1]`` for others.
    """
    full: list[list[int]] = []
    open_buckets: dict[torch.dtype, list[int]] = {}
    for index in order:
        dtype = parameters[index].dtype
        bucket = open_buckets.setdefault(dtype, [])
        bucket.append(index)
        cap = caps[0] if not full else caps[1]
        if sum(parameters[i].nbytes for i in bucket) >= cap:
            full.append(open_buckets.pop(dtype))
    return full + list(open_buckets.values())


class Bucket:
    """Gradients that travel together.

    Attributes:
        indices: positions of its parameters.
        flat: their gradients in one 1-D tensor.
        views: {position: its part of ``flat``, in the parameter's shape}.
        missing: positions whose gradients are not in yet.
        work: the all-reduce, once it is launched.
    """

    def __init__(self, indices: list[int], parameters: list[nn.Parameter]) -> None:
        self.indices = indices
        sizes = [parameters[i].numel() for i in indices]
        self.flat = torch.zeros(
            sum(sizes), dtype=parameters[indices[0]].dtype, device=parameters[indices[0]].device
        )
        self.views = {}
        for index, part in zip(indices, self.flat.split(sizes), strict=True):
            self.views[index] = part.view_as(parameters[index])
        self.missing = set(indices)
        self.work: dist.Work | None = None


class OverlappedDDP(nn.Module):
    """Data parallel training that communicates while backward goes on. Stands in for torch's DDP.

    When ``backward()`` returns, ``p.grad`` is the mean over the ranks, for each parameter p that some rank
    has used since the last average. Others keep what they have, as in DDP with
    ``find_unused_parameters=True``.

    Attributes that the two methods need:
        trainable: the parameters that learn. A parameter's position in it is called its index.
        sync_this: whether this backward averages. It does not for what was forwarded in ``no_sync()``.
        buckets: in the order in which they are to be launched, the same on all ranks. ``bucket_of``: {index:
            its bucket}.
        launched: how many of the buckets are on their way in this backward.
        used: indices of parameters that got a gradient since the last average, in the order of arrival.
        in_backward: whether an averaging backward is under way.
    """

    def __init__(
        self,
        module: nn.Module,
        bucket_cap_mb: float | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.module = module
        self.process_group = process_group
        self.ranks = dist.get_world_size(process_group)
        self.trainable = [p for p in module.parameters() if p.requires_grad]  # a tied one once
        if not self.trainable:
            raise ValueError("no parameter of the module requires a gradient")
        self.caps = [MIB, 25 * MIB] if bucket_cap_mb is None else [bucket_cap_mb * MIB] * 2
        self.sync = True
        self.sync_this = True
        self.sync_buffers = True
        self.used: list[int] = []
        self.in_backward = False
        self.follows_arrival = False
        broadcast_from_rank_0([*module.parameters(), *module.buffers()], process_group)
        guess = list(reversed(range(len(self.trainable))))  # what is used last is ready first
        self._make_buckets(guess)
        for index, parameter in enumerate(self.trainable):
            parameter.register_post_accumulate_grad_hook(partial(self._gradient_ready, index))

    def _make_buckets(self, order: list[int]) -> None:
        layout = fill_buckets(self.trainable, order, self.caps)
        self.buckets = [Bucket(indices, self.trainable) for indices in layout]
        self.bucket_of = {index: bucket for bucket in self.buckets for index in bucket.indices}
        self.launched = 0

    def _follow_arrival(self) -> None:
        """New buckets, once, in the order in which rank 0's gradients have come. Collective."""
        if self.follows_arrival:
            return
        never = [index for index in reversed(range(len(self.trainable))) if index not in self.used]
        order = torch.tensor(self.used + never, device=self.trainable[0].device)
        broadcast_from_rank_0([order], self.process_group)
        self._make_buckets(order.tolist())
        self.follows_arrival = True

    def forward(self, *inputs, **kwargs):
        if self.sync_buffers:
            broadcast_from_rank_0(self.module.buffers(), self.process_group)
        self.sync_buffers = self.sync and torch.is_grad_enabled()  # as DDP: after a forward that syncs
        if torch.is_grad_enabled():  # an evaluation before backward changes nothing for that backward
            self.sync_this = self.sync
        return self.module(*inputs, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """What is forwarded in here adds to this rank's own gradients. The next average includes it."""
        before = self.sync
        self.sync = False
        try:
            yield
        finally:
            self.sync = before

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

    def _launch_in_turn(self) -> None:
        """Start the all-reduce of each bucket that is full and whose turn it is. It waits for none."""
        while self.launched < len(self.buckets):
            bucket = self.buckets[self.launched]
            if bucket.missing:
                return
            bucket.work = dist.all_reduce(bucket.flat, group=self.process_group, async_op=True)
            self.launched += 1

    def _reset(self) -> None:
        """Forget this backward."""
        for bucket in self.buckets:
            bucket.missing = set(bucket.indices)
        self.launched = 0
        self.used = []
        self.in_backward = False

    # Your part begins here.

    def _gradient_ready(self, index: int, parameter: nn.Parameter) -> None:
        """The hook. Autograd calls it when the gradient of ``trainable[index]`` is complete in this backward.

        Note that the parameter is used, also in a backward that does not average. In one that does: have
        autograd call ``_finish`` when this backward is over, once, by
        ``Variable._execution_engine.queue_callback(self._finish)``; put the gradient into its bucket; launch.
        """
        # solution: begin
        if index not in self.used:
            self.used.append(index)
        if not self.sync_this:
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
        2. Find out which parameters some rank has used (``used``). One that this rank has not, but another
           has, gets its gradient from the bucket. One that nobody has used keeps what it has.
        3. Wait for all buckets.
        """
        # solution: begin
        for bucket in self.buckets:
            for index in sorted(bucket.missing):
                self._put(index)
        self._launch_in_turn()
        users = torch.zeros(len(self.trainable), device=self.trainable[0].device)
        users[self.used] = 1
        dist.all_reduce(users, group=self.process_group)
        for bucket in self.buckets:
            bucket.work.wait()
        for index, count in enumerate(users.tolist()):
            parameter = self.trainable[index]
            if count > 0 and parameter.grad is None:
                parameter.grad = self.bucket_of[index].views[index]
        # solution: end
        self._follow_arrival()
        self._reset()
