"""A DDP by hand, third step: buckets of gradients are on their way during the backward pass.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_09_overlapped.py
Written by:  notebooks/09_ddp_inside.ipynb (edit it there)
"""

from collections.abc import Iterable
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU

MIB = 2**20
LAYERS = 3  # of the model that `main` trains


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
            # By .data: autograd does not count it as a change, so a backward that is still to come works.
            tensor.data.copy_(part.view_as(tensor))


def fill_buckets(parameters: list[nn.Parameter], order: list[int], caps: list[float]) -> list[list[int]]:
    """Positions of parameters, in this order, cut into buckets of one dtype.

    A bucket is closed when it *reaches* its cap in bytes: ``caps[0]`` for the first of its dtype, ``caps[1]``
    for others. What is open at the end comes last: with several dtypes, not always in the order of DDP.
    """
    full: list[list[int]] = []
    open_buckets: dict[torch.dtype, list[int]] = {}
    begun: set[torch.dtype] = set()  # those whose first bucket is closed
    for index in order:
        dtype = parameters[index].dtype
        bucket = open_buckets.setdefault(dtype, [])
        bucket.append(index)
        cap = caps[1] if dtype in begun else caps[0]
        if sum(parameters[i].nbytes for i in bucket) >= cap:
            full.append(open_buckets.pop(dtype))
            begun.add(dtype)
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
    """Data parallelism that communicates during the backward pass.

    ``forward`` arms it for one backward. When that returns, each ``p.grad`` is the mean over the ranks, and a
    view of a bucket. A second backward without a new forward stays local. Each parameter that learns must
    take part in the averaged backward, as with torch's DDP by default; but the error comes at its end, in
    DDP in the next forward. A reentrant checkpoint, which DDP allows, ends in that error, too.

    Args:
        module: the model, built alike on each rank. Its parameters and buffers become rank 0's.
        bucket_cap_mb: a bucket is full when it has so many MiB. None: the first at 1, the others at 25.
        process_group: the ranks that average their gradients; None for all.

    Source: Li et al., PyTorch Distributed, 2020, arXiv 2006.15704, sections 3.2 and 4.2.
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
        self.caps = [MIB, 25 * MIB] if bucket_cap_mb is None else [bucket_cap_mb * MIB] * 2
        broadcast_from_rank_0([*module.parameters(), *module.buffers()], process_group)
        guess = list(reversed(range(len(self.trainable))))  # what is used last is ready first
        self._make_buckets(guess)
        self.follows_arrival = False
        self.armed = False  # whether the next backward averages
        self.launched = 0  # buckets of this backward that are on their way
        self.arrived: list[int] = []  # gradients of this backward, in the order in which they came
        for index, parameter in enumerate(self.trainable):
            parameter.register_post_accumulate_grad_hook(partial(self._gradient_ready, index))

    def _make_buckets(self, order: list[int]) -> None:
        layout = fill_buckets(self.trainable, order, self.caps)
        self.buckets = [Bucket(indices, self.trainable) for indices in layout]
        self.bucket_of = {index: bucket for bucket in self.buckets for index in bucket.indices}

    def forward(self, *inputs, **kwargs):
        broadcast_from_rank_0(self.module.buffers(), self.process_group)
        if torch.is_grad_enabled():
            self._arm()
        return self.module(*inputs, **kwargs)

    def _arm(self) -> None:
        """Prepare the next backward to average, whatever became of the one before."""
        self.armed = True
        self.launched = 0
        self.arrived = []
        for bucket in self.buckets:
            bucket.missing = set(bucket.indices)

    @torch.no_grad()
    def _gradient_ready(self, index: int, parameter: nn.Parameter) -> None:
        """The hook: autograd calls it as soon as the gradient of a parameter is complete."""
        if not self.armed:
            return
        if not self.arrived:  # the first of this backward: have autograd call _finish at its end
            Variable._execution_engine.queue_callback(self._finish)
        self.arrived.append(index)
        bucket = self.bucket_of[index]
        view = bucket.views[index]
        torch.div(parameter.grad, self.ranks, out=view)
        parameter.grad = view  # so that nothing has to be copied back
        bucket.missing.remove(index)
        self._launch_in_turn()

    def _launch_in_turn(self) -> None:
        """Launch what is full, but in the order of the buckets, which is the same on all ranks."""
        while self.launched < len(self.buckets):
            bucket = self.buckets[self.launched]
            if bucket.missing:
                return
            bucket.work = dist.all_reduce(bucket.flat, group=self.process_group, async_op=True)
            self.launched += 1

    def _finish(self) -> None:
        """The end of backward: wait for all buckets. After the first one, make new ones."""
        self.armed = False
        unused = sorted(index for bucket in self.buckets for index in bucket.missing)
        if unused:
            raise RuntimeError(f"parameters {unused} got no gradient in this backward")
        for bucket in self.buckets:
            bucket.work.wait()
        if not self.follows_arrival:  # from now on, buckets follow the order in which rank 0's gradients came
            order = torch.tensor(self.arrived, device=self.buckets[0].flat.device)
            dist.broadcast(order, group=self.process_group, group_src=0)
            self._make_buckets(order.tolist())
            self.follows_arrival = True


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(rank)  # a different model on each rank, on purpose
    layers = [nn.Linear(32, 32, bias=False, dtype=torch.float64) for _ in range(LAYERS)]
    ddp = OverlappedDDP(nn.Sequential(*layers).to(device), bucket_cap_mb=0.001)  # a bucket for each layer
    launched_when_ready = []
    for parameter in ddp.trainable:  # a second hook: how many buckets are on their way by now?
        parameter.register_post_accumulate_grad_hook(lambda _: launched_when_ready.append(ddp.launched))
    x = torch.randn(ranks, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
    ddp(x[rank : rank + 1]).square().sum().backward()
    gradients = [p.grad.clone() for p in ddp.trainable]

    alone = torch.autograd.grad(ddp.module(x).square().sum() / ranks, ddp.trainable)
    if rank == 0:
        for number, launched in enumerate(launched_when_ready, start=1):
            print(f"gradient {number} is ready: {launched} of {len(ddp.buckets)} buckets are on their way")
    each = list(range(1, len(ddp.trainable) + 1))
    assert launched_when_ready == each, "not a bucket for each gradient, launched when it is ready"
    rounding = 1e4 * torch.finfo(x.dtype).eps  # 2e-12 in float64
    for gradient, truth in zip(gradients, alone, strict=True):
        assert torch.allclose(gradient, truth, rtol=0, atol=rounding), (
            "the mean over the ranks is not that of one process"
        )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
