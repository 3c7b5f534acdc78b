"""Five arguments of DDP's constructor, each with what it changes.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_08/proof_options.py
"""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.parity import assert_all_equal, assert_same_on_every_rank, gradients


class TwoBranches(nn.Module):
    """Uses only one of its two layers: input (batch, 8), output (batch, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(8, 8)  # the last bucket: those before it are reduced
        self.used = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


class Recomputed(nn.Module):
    """A layer under two reentrant checkpoints: input (batch, 8), output (batch, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = checkpoint(self.layer, x, use_reentrant=True)
        return x


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


def find_unused_parameters(group: Group) -> str:
    for cap in (None, 1e-5):  # one bucket for both layers, or one for each
        strict = DDP(TwoBranches().to(group.device), bucket_cap_mb=cap)
        backward(strict)  # the step in which a layer goes unused: no error, and no average
        apart = farthest_from_rank_0(strict.module.used.weight.grad)
        assert apart > 0.01 or group.world_size == 1, (cap, apart)
        complaint = error_of(partial(backward, strict))  # the step after it
        assert complaint.startswith("Expected to have finished reduction"), complaint
    tolerant = DDP(TwoBranches().to(group.device), find_unused_parameters=True)
    backward(tolerant, times=3)
    assert tolerant.module.unused.weight.grad is None
    assert_same_on_every_rank("used", [("weight", tolerant.module.used.weight.grad)])
    return "False: a layer is unused, and no gradient is averaged; one step later: error. True: averaged"


def accumulated(ddp: DDP, group: Group, first_synchronizes: bool) -> list[tuple[str, torch.Tensor]]:
    """Gradients after two steps of two micro-batches, the same data for each call."""
    draw = torch.Generator().manual_seed(group.rank)
    if first_synchronizes:
        backward(ddp)
    for _ in range(2):
        ddp.zero_grad()
        for context in (ddp.no_sync(), nullcontext()):
            with context:
                ddp(torch.randn(4, 8, generator=draw).to(group.device)).square().sum().backward()
    return gradients(ddp)


def apart_after_recomputing(group: Group, **options: bool) -> float:
    """How far the ranks' gradients are from rank 0's with a layer under two reentrant checkpoints."""
    draw = torch.Generator().manual_seed(group.rank)
    ddp = DDP(Recomputed().to(group.device), **options)
    for _ in range(2):
        ddp.zero_grad()
        inputs = torch.randn(4, 8, generator=draw).to(group.device)
        ddp(inputs.requires_grad_()).sum().backward()  # reentrant checkpoints need inputs with a gradient
    return farthest_from_rank_0(ddp.module.layer.weight.grad)


def static_graph(group: Group) -> str:
    torch.manual_seed(0)
    model = TwoBranches().to(group.device)
    expected = accumulated(DDP(deepcopy(model), find_unused_parameters=True), group, first_synchronizes=True)
    found = accumulated(DDP(deepcopy(model), static_graph=True), group, first_synchronizes=True)
    assert_all_equal("static_graph", found, expected, 1e-4)  # float32
    failing = DDP(deepcopy(model), static_graph=True)
    complaint = error_of(lambda: accumulated(failing, group, first_synchronizes=False))
    assert "INTERNAL ASSERT FAILED" in complaint, complaint

    apart = apart_after_recomputing(group)
    assert apart > 0.01 or group.world_size == 1, f"averaged without static_graph: {apart}"
    apart = apart_after_recomputing(group, static_graph=True)
    assert apart == 0.0, f"not averaged with static_graph: {apart}"
    return (
        "False: a layer under two reentrant checkpoints is not averaged, without an error. True: it and "
        "unused layers are right; no_sync, too, after a step that synchronizes"
    )


def gradient_as_bucket_view(group: Group) -> str:
    storages = []
    for view in (False, True):
        ddp = DDP(nn.Linear(64, 64).to(group.device), gradient_as_bucket_view=view)
        for _ in range(2):
            ddp.zero_grad()  # to None, as optimizers do
            backward(ddp, 64)
        addresses = {p.grad.untyped_storage().data_ptr() for p in ddp.parameters()}
        storages.append(len(addresses))
    assert storages == [2, 1], storages
    return f"False: 2 gradients in {storages[0]} storages; True: in {storages[1]}, that of the bucket"


def buffers_apart(group: Group, no_sync: bool = False, **options: bool) -> tuple[float, float]:
    """How far the ranks' running means are from rank 0's: after the constructor, and after two forwards."""
    model = nn.BatchNorm1d(8).to(group.device)
    model.running_mean += group.rank
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # broadcast_buffers is deprecated
        ddp = DDP(model, **options)
    at_start = farthest_from_rank_0(model.running_mean)
    with ddp.no_sync() if no_sync else nullcontext():
        ddp(torch.randn(64, 8, device=group.device) + group.rank)  # each running mean goes its own way
    ddp.eval()
    ddp(torch.randn(64, 8, device=group.device))  # changes no running mean by itself
    return at_start, farthest_from_rank_0(model.running_mean)


def forward_sync_buffers(group: Group) -> str:
    alone = group.world_size == 1
    assert buffers_apart(group) == (0.0, 0.0)
    start, later = buffers_apart(group, forward_sync_buffers=False)
    assert start == 0.0 and (later > 0.05 or alone), (start, later)
    start, later = buffers_apart(group, broadcast_buffers=False)
    assert (start >= 1.0 and later >= 0.05) or alone, (start, later)
    start, later = buffers_apart(group, no_sync=True)
    assert start == 0.0 and (later > 0.05 or alone), (start, later)
    return (
        "True: every forward sends rank 0's, except one right after no_sync; False: only the constructor does"
    )


def buckets(group: Group, **options) -> list[int]:
    """MiB of each all-reduce in a step of a model with 6 layers of 1 MiB."""
    layers = [nn.Linear(512, 512, bias=False) for _ in range(6)]
    ddp = DDP(nn.Sequential(*layers).to(group.device), **options)
    backward(ddp, 512, times=2)  # DDP settles its buckets after the first step
    with record() as log:
        backward(ddp, 512)
    return [call.bytes // 2**20 for call in log.of("all_reduce")]


def bucket_cap_mb(group: Group) -> str:
    default, cap_25, cap_1 = buckets(group), buckets(group, bucket_cap_mb=25), buckets(group, bucket_cap_mb=1)
    assert (default, cap_25, cap_1) == ([1, 5], [6], [1] * 6), (default, cap_25, cap_1)
    listed = buckets(group, bucket_cap_mb_list=[1, 2])
    assert listed == [1, 2, 2, 1], listed  # a cap for each bucket; the last cap is that of all others
    return (
        f"6 layers of 1 MiB: {len(cap_1)} all-reduces at 1, {len(cap_25)} at 25; by default {default} MiB, "
        f"with the list [1, 2] {listed} MiB"
    )


SHOWN = {
    "find_unused_parameters": find_unused_parameters,
    "static_graph": static_graph,
    "gradient_as_bucket_view": gradient_as_bucket_view,
    "forward_sync_buffers": forward_sync_buffers,
    "bucket_cap_mb": bucket_cap_mb,
}


def main() -> None:
    with process_group(timeout_s=20) as group:
        for name, show in SHOWN.items():
            print_on_rank_0(f"{name:30} {show(group)}")


if __name__ == "__main__":
    run(main)
