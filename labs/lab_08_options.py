"""The constructor's parameters that matter, each with what it changes.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_08_options.py
Written by:  notebooks/08_ddp.ipynb
"""

from collections.abc import Callable
from inspect import signature

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel as DDP

from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.parity import assert_same_on_every_rank


class TwoBranches(nn.Module):
    """Uses only one of its two layers: input (batch, 8), output (batch, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def backward(ddp: DDP, width: int = 8, times: int = 1) -> None:
    """``times`` rounds of forward and backward on random input (4, width)."""
    for _ in range(times):
        ddp(torch.randn(4, width, device=next(ddp.parameters()).device)).sum().backward()


def error_of(function: Callable, kind: type[Exception] = RuntimeError) -> str:
    """The first line of the error that ``function`` must raise."""
    try:
        function()
    except kind as error:
        return str(error).splitlines()[0]
    raise CourseError("an error was expected, but there was none")


def device_ids(group: Group) -> str:
    if group.device.type == "cuda":
        DDP(nn.Linear(8, 8).to(group.device), device_ids=[group.local_rank])
        return "on a GPU a list with this process's one device; inputs are moved there"
    error_of(lambda: DDP(nn.Linear(8, 8), device_ids=[0]), ValueError)
    return "on a CPU it must stay None; a list raises ValueError"


def find_unused_parameters(group: Group) -> str:
    strict = DDP(TwoBranches().to(group.device))
    backward(strict)
    complaint = error_of(lambda: backward(strict))
    assert complaint.startswith("Expected to have finished reduction"), complaint
    tolerant = DDP(TwoBranches().to(group.device), find_unused_parameters=True)
    backward(tolerant, times=3)
    assert tolerant.module.unused.weight.grad is None
    assert_same_on_every_rank("used", [("weight", tolerant.module.used.weight.grad)])
    return "False: the step after a layer went unused raises; True: that layer is left out"


def static_graph(group: Group) -> str:
    ddp = DDP(TwoBranches().to(group.device), static_graph=True)
    backward(ddp, times=3)
    assert_same_on_every_rank("used", [("weight", ddp.module.used.weight.grad)])
    return "True: the unused layer raises nothing; every step must then use the same layers"


def gradient_as_bucket_view(group: Group) -> str:
    storages = []
    for view in (False, True):
        ddp = DDP(nn.Linear(64, 64).to(group.device), gradient_as_bucket_view=view)
        backward(ddp, 64, times=2)
        storages.append(len({p.grad.untyped_storage().data_ptr() for p in ddp.parameters()}))
    assert storages == [2, 1], storages
    return f"False: 2 gradients lie in {storages[0]} storages; True: in {storages[1]}, the bucket's own"


def broadcast_buffers(group: Group) -> str:
    # Deprecated since torch 2.13. Its successor governs the forward only; the constructor syncs in any case.
    name = next(n for n in ("forward_sync_buffers", "broadcast_buffers") if n in signature(DDP).parameters)
    far = {}
    for switch in (True, False):
        ddp = DDP(nn.BatchNorm1d(8).to(group.device), **{name: switch})
        ddp(torch.randn(64, 8, device=group.device) + group.rank)  # each rank's running mean goes its own way
        ddp.eval()
        ddp(torch.randn(64, 8, device=group.device))  # changes no running mean by itself
        from_rank_0 = ddp.module.running_mean.clone()
        dist.broadcast(from_rank_0, src=0)
        distance = (ddp.module.running_mean - from_rank_0).abs().max()
        dist.all_reduce(distance, op=dist.ReduceOp.MAX)
        far[switch] = distance.item()
    assert far[True] == 0.0, far
    assert far[False] > 0.05 or group.world_size == 1, far
    return "True: each forward starts from rank 0's buffers; False: forwards leave them as they are"


def bucket_cap_mb(group: Group) -> str:
    calls = {}
    for cap in (0.05, 25):
        layers = [nn.Linear(128, 128, bias=False) for _ in range(8)]  # 64 KiB each
        ddp = DDP(nn.Sequential(*layers).to(group.device), bucket_cap_mb=cap)
        counted = []

        def hook(counted: list, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            counted.append(bucket.buffer().numel())
            return allreduce_hook(None, bucket)

        ddp.register_comm_hook(counted, hook)
        backward(ddp, 128, times=2)  # DDP settles its buckets after the first step
        counted.clear()
        backward(ddp, 128)
        calls[cap] = len(counted)
    assert calls == {0.05: 8, 25: 1}, calls
    return f"8 layers of 64 KiB: {calls[0.05]} all-reduces per step at 0.05, {calls[25]} at the default of 25"


SHOWN = (
    device_ids,
    find_unused_parameters,
    static_graph,
    gradient_as_bucket_view,
    broadcast_buffers,
    bucket_cap_mb,
)


def main() -> None:
    with process_group(timeout_s=20) as group:
        rows = {}
        for show in SHOWN:
            rows[show.__name__] = show(group)
            print_on_rank_0(f"{show.__name__:24} {rows[show.__name__]}")
        record_results("lab_08_options", rows)


if __name__ == "__main__":
    run(main)
