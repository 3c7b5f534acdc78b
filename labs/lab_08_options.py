"""The constructor's parameters that matter, each with what it changes.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_08_options.py
Written by:  notebooks/08_ddp.ipynb (edit it there)
"""

from collections.abc import Callable
from inspect import signature

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from shared.comm.record import record
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
        self.used = nn.Linear(8, 8)
        self.unused = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def backward(ddp: DDP, width: int = 8, times: int = 1) -> None:
    """``times`` rounds of forward and backward on random input (4, width)."""
    device = next(ddp.parameters()).device
    for _ in range(times):
        ddp(torch.randn(4, width, device=device)).sum().backward()


def error_of(function: Callable, kind: type[Exception] = RuntimeError) -> str:
    """The first line of the error that ``function`` must raise."""
    try:
        function()
    except kind as error:
        return str(error).splitlines()[0]
    raise CourseError("an error was expected, but there was none")


def farthest_from_rank_0(tensor: torch.Tensor) -> float:
    """The largest absolute difference of any rank's ``tensor`` to rank 0's. Collective."""
    from_rank_0 = tensor.detach().clone()
    dist.broadcast(from_rank_0, src=0)
    distance = (tensor - from_rank_0).abs().max()
    dist.all_reduce(distance, op=dist.ReduceOp.MAX)
    return distance.item()


def device_ids(group: Group) -> str:
    if group.device.type == "cuda":
        DDP(nn.Linear(8, 8).to(group.device), device_ids=[group.local_rank])
        return "on a GPU a list with this process's one device; inputs are moved there"
    error_of(lambda: DDP(nn.Linear(8, 8), device_ids=[0]), ValueError)
    return "on a CPU it must stay None; a list raises ValueError"


def output_device(group: Group) -> str:
    if group.device.type == "cuda":
        model = nn.Linear(8, 8).to(group.device)
        ddp = DDP(model, device_ids=[group.local_rank], output_device=group.local_rank)
        assert ddp(torch.ones(1, 8)).device == group.device
        return "on a GPU where the output goes; by default the device of device_ids"
    error_of(lambda: DDP(nn.Linear(8, 8), output_device=torch.device("cpu")), ValueError)
    return "on a CPU it must stay None, too"


def process_group_(group: Group) -> str:
    """Even and odd ranks average among themselves. Rank r's own gradient is r + 1."""
    halves = {}
    for first in range(min(2, group.world_size)):
        members = list(range(first, group.world_size, 2))
        halves[first] = (members, dist.new_group(members))  # all ranks create all groups
    members, half = halves[group.rank % 2]
    model = nn.Linear(1, 1, bias=False).to(group.device)
    ddp = DDP(model, process_group=half)
    ddp(torch.full((1, 1), group.rank + 1.0, device=group.device)).sum().backward()
    mean = sum(rank + 1 for rank in members) / len(members)
    assert model.weight.grad.item() == mean, (model.weight.grad.item(), mean)
    return "a group of some ranks: only they become equal, and only they average"


def find_unused_parameters(group: Group) -> str:
    strict = DDP(TwoBranches().to(group.device))
    backward(strict)  # the step in which a layer goes unused: no error, and no average
    apart = farthest_from_rank_0(strict.module.used.weight.grad)
    assert apart > 0.01 or group.world_size == 1, apart
    complaint = error_of(lambda: backward(strict))  # the step after it
    assert complaint.startswith("Expected to have finished reduction"), complaint
    tolerant = DDP(TwoBranches().to(group.device), find_unused_parameters=True)
    backward(tolerant, times=3)
    assert tolerant.module.unused.weight.grad is None
    assert_same_on_every_rank("used", [("weight", tolerant.module.used.weight.grad)])
    return "False: a layer is unused, and no gradient is averaged; one step later: error. True: all is well"


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
        addresses = {p.grad.untyped_storage().data_ptr() for p in ddp.parameters()}
        storages.append(len(addresses))
    assert storages == [2, 1], storages
    return f"False: 2 gradients lie in {storages[0]} storages; True: in {storages[1]}, the bucket's own"


def broadcast_buffers(group: Group) -> str:
    # Deprecated since torch 2.13. Its successor governs the forward only; the constructor syncs in any case.
    known = signature(DDP).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    far = {}
    for switch in (True, False):
        ddp = DDP(nn.BatchNorm1d(8).to(group.device), **{name: switch})
        ddp(torch.randn(64, 8, device=group.device) + group.rank)  # each rank's running mean goes its own way
        ddp.eval()
        ddp(torch.randn(64, 8, device=group.device))  # changes no running mean by itself
        far[switch] = farthest_from_rank_0(ddp.module.running_mean)
    assert far[True] == 0.0, far
    assert far[False] > 0.05 or group.world_size == 1, far
    return "True: each forward starts from rank 0's buffers; False: forwards leave them as they are"


def bucket_cap_mb(group: Group) -> str:
    calls = {}
    for cap in (None, 25, 1):
        layers = [nn.Linear(512, 512, bias=False) for _ in range(4)]  # 1 MiB each
        ddp = DDP(nn.Sequential(*layers).to(group.device), bucket_cap_mb=cap)
        backward(ddp, 512, times=2)  # DDP settles its buckets after the first step
        with record() as log:
            backward(ddp, 512)
        calls[cap] = log.count("all_reduce")
    assert calls == {None: 2, 25: 1, 1: 4}, calls
    return (
        f"4 layers of 1 MiB: {calls[1]} all-reduces at 1, {calls[25]} at 25, "
        f"{calls[None]} by default: 1 MiB, then 25 MiB"
    )


SHOWN = {
    "device_ids": device_ids,
    "output_device": output_device,
    "process_group": process_group_,
    "find_unused_parameters": find_unused_parameters,
    "static_graph": static_graph,
    "gradient_as_bucket_view": gradient_as_bucket_view,
    "broadcast_buffers": broadcast_buffers,
    "bucket_cap_mb": bucket_cap_mb,
}


def main() -> None:
    with process_group(timeout_s=20) as group:
        rows = {}
        for name, show in SHOWN.items():
            rows[name] = show(group)
            print_on_rank_0(f"{name:24} {rows[name]}")
        record_results("lab_08_options", rows)


if __name__ == "__main__":
    run(main)
