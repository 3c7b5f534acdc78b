"""What the benchmark of lesson 09 measures: a model, wrapped in one of several ways, that trains."""

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from functools import cache

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torchvision
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from shared.comm.paced import Wire
from shared.runtime.group import Group

from lab_09_naive import NaiveDDP
from lab_09_overlapped import OverlappedDDP
from lesson_09.proof_flat import FlatDDP

REAL_ALL_REDUCE = dist.all_reduce  # whatever wire is in place


def wrappers(members: dist.ProcessGroup, cap: float | None, wire: Wire | None) -> dict[str, Callable]:
    """{name: function from a model to the model to train}. With a wire, torch's DDP uses it, too."""

    def torchs(model: nn.Module) -> nn.Module:
        ddp = DistributedDataParallel(model, process_group=members, bucket_cap_mb=cap)
        if wire:
            ddp.register_comm_hook(members, wire.comm_hook)
        return ddp

    return {
        "no communication": lambda model: model,
        "naive": lambda model: NaiveDDP(model, members),
        "flat": lambda model: FlatDDP(model, members),
        "overlapped": lambda model: OverlappedDDP(model, cap, members),
        "torch": torchs,
    }


@cache
def built(name: str) -> nn.Module:
    """A model of torchvision. Building it takes longer than copying it."""
    return getattr(torchvision.models, name)()


class Step:
    """One model that trains on random images, and the times of its steps."""

    def __init__(self, wrap: Callable, args: argparse.Namespace, group: Group) -> None:
        model = copy.deepcopy(built(args.model)).to(group.device)
        self.model = wrap(model)
        self.group = group
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.x = torch.randn(args.batch, 3, args.image, args.image, device=group.device)
        self.y = torch.ones(args.batch, dtype=torch.int64, device=group.device)
        self.times: list[tuple[float, float]] = []  # forward, backward with communication

    def now(self) -> float:
        if self.group.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def __call__(self, members: dist.ProcessGroup) -> None:
        self.optimizer.zero_grad()
        dist.barrier(group=members)
        start = self.now()
        with record_function("forward"):
            loss = F.cross_entropy(self.model(self.x), self.y)
        forward = self.now()
        with record_function("backward"):
            loss.backward()
        if hasattr(self.model, "reduce_gradients"):
            with record_function("finish"):
                self.model.reduce_gradients()
        took = torch.tensor([forward - start, self.now() - forward], device=self.group.device)
        REAL_ALL_REDUCE(took, op=dist.ReduceOp.MAX, group=members)  # the slowest rank counts
        forward_s, backward_s = took.tolist()
        self.times.append((forward_s, backward_s))
        self.optimizer.step()

    def medians(self, skip: int) -> dict[str, float]:
        """Seconds of the steps after the first ``skip``."""
        times = self.times[skip:]
        return {
            "forward": statistics.median(forward for forward, _ in times),
            "backward": statistics.median(backward for _, backward in times),
            "total": statistics.median(forward + backward for forward, backward in times),
        }
