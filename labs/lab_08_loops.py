"""Shapes of training loops under DDP: how often the ranks average, and whether they equal one process.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_08_loops.py
Written by:  notebooks/08_ddp.ipynb (edit it there)
"""

from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from functools import partial

import torch
import torch.distributed as dist

# For gloo: without this import the exit may abort (see the notebook). Leave it out with nccl.
import torch.distributed.nn.functional
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU

ROWS = 4  # of a rank in a forward pass
ROUNDING = 1e4  # steps of the dtype: 2e-12 in float64


class TwoNets(nn.Module):
    """Two networks in one module: (rows, 8) to (rows, 8), float64.

    ``use``: "one", "other", or "both" in a row. ``reentrant``: of an activation checkpoint; None for none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).double()
        self.other = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).double()

    def forward(self, x: torch.Tensor, use: str = "both", reentrant: bool | None = None) -> torch.Tensor:
        nets = [self.one, self.other] if use == "both" else [getattr(self, use)]
        for net in nets:
            x = net(x) if reentrant is None else checkpoint(net, x, use_reentrant=reentrant)
        return x


def loss(model: nn.Module, x: torch.Tensor, **how) -> torch.Tensor:
    """A forward pass, and the mean over the rows of what comes out."""
    return model(x, **how).square().mean()


def no_sync(model: nn.Module):
    """DDP's own; one process has nothing to leave out."""
    return model.no_sync() if hasattr(model, "no_sync") else nullcontext()


# The shapes. ``a`` and ``b`` are two micro-batches.


def one_backward(model, a, b):
    loss(model, a).backward()


def sum_of_losses(model, a, b):
    (loss(model, a) + loss(model, b)).backward()


def in_turn(model, a, b):
    loss(model, a).backward()
    loss(model, b).backward()


def two_forwards_first(model, a, b):
    loss_a = loss(model, a)
    loss_b = loss(model, b)
    loss_a.backward()
    loss_b.backward()


def same_graph_twice(model, a, b):
    loss_a = loss(model, a)
    loss_a.backward(retain_graph=True)
    loss_a.backward()


def accumulation(model, a, b):
    with no_sync(model):
        loss(model, a).backward()
    loss(model, b).backward()


def no_sync_around_backward(model, a, b):
    loss_a = loss(model, a)
    with no_sync(model):
        loss_a.backward()
    loss(model, b).backward()


def no_sync_around_forward(model, a, b):
    with no_sync(model):
        loss_a = loss(model, a)
    loss_a.backward()


def evaluation_in_between(model, a, b):
    loss_a = loss(model, a)
    with torch.no_grad():
        loss(model, b)
    loss_a.backward()


def one_net_each(model, a, b):
    loss(model, a, use="one").backward()
    loss(model, b, use="other").backward()


def checkpointed(model, a, b, reentrant=False):
    loss(model, a.requires_grad_(), reentrant=reentrant).backward()


def around_the_wrapper(model, a, b):
    loss(getattr(model, "module", model), a).backward()


# {shape: (function, outcome with DDP's defaults, outcome with find_unused_parameters=True)}
SHAPES: dict[str, tuple[Callable, str, str]] = {
    "forward, backward": (one_backward, "1, equal", "1, equal"),
    "two forwards, backward of the sum": (sum_of_losses, "1, equal", "1, equal"),
    "forward, backward, forward, backward": (in_turn, "2, equal", "2, equal"),
    "two forwards, two backwards": (two_forwards_first, "1, WRONG", "1, WRONG"),
    "forward, two backwards (retain_graph)": (same_graph_twice, "1, WRONG", "1, WRONG"),
    "no_sync: first forward and backward": (accumulation, "1, equal", "1, equal"),
    "no_sync: first backward alone": (no_sync_around_backward, "2, equal", "2, equal"),
    "no_sync: forward, not its backward": (no_sync_around_forward, "0, WRONG", "0, WRONG"),
    "forward, one under no_grad, backward": (evaluation_in_between, "1, equal", "1, equal"),
    "two networks in one wrapper, in turn": (one_net_each, "error", "2, equal"),
    "checkpoint": (checkpointed, "1, equal", "1, equal"),
    "checkpoint, reentrant": (partial(checkpointed, reentrant=True), "1, equal", "error"),
    "forward of ddp.module": (around_the_wrapper, "0, WRONG", "0, WRONG"),
}


def farthest(model: nn.Module, alone: nn.Module) -> float:
    """The largest difference of a gradient on any rank to that of one process. Collective."""
    off = torch.zeros((), dtype=torch.float64, device=next(model.parameters()).device)
    for parameter, truth in zip(model.parameters(), alone.parameters(), strict=True):
        gradient = torch.zeros_like(truth) if parameter.grad is None else parameter.grad
        off = torch.maximum(off, (gradient - truth.grad).abs().max())
    dist.all_reduce(off, op=dist.ReduceOp.MAX)
    return off.item()


def outcome(shape: Callable, ddp: nn.Module, alone: nn.Module, calls: Callable[[], int]) -> str:
    """Play two steps of a loop, with different rows on each rank and with all rows in one process.

    ``calls``: how many all-reduces of gradients there were so far. Returns the number in the second step, and
    "equal" or "WRONG". Collective.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    first = next(alone.parameters())
    draw = torch.Generator().manual_seed(0)  # the same rows on all ranks
    for _ in range(2):
        ddp.zero_grad()
        alone.zero_grad()
        a, b = torch.randn(2, ranks, ROWS, 8, dtype=first.dtype, generator=draw).to(first.device)
        before = calls()
        try:
            shape(ddp, a[rank], b[rank])
        except RuntimeError:
            return "error"
        count = calls() - before
        shape(alone, a.flatten(0, 1), b.flatten(0, 1))
        right = farthest(ddp.module, alone) < ROUNDING * torch.finfo(first.dtype).eps
    return f"{count}, {'equal' if right else 'WRONG'}"


def outcome_of_ddp(shape: Callable, device: torch.device, **options) -> str:
    """``outcome`` of torch's DDP. A communication hook counts its all-reduces; the model fills one bucket."""
    torch.manual_seed(0)
    model = TwoNets().to(device)
    alone = deepcopy(model)
    ddp = DistributedDataParallel(model, **options)
    counted = []

    def count_and_average(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        counted.append(bucket.index())
        return allreduce_hook(state, bucket)

    ddp.register_comm_hook(None, count_and_average)
    return outcome(shape, ddp, alone, lambda: len(counted))


def main() -> None:
    device = setup()
    if dist.get_rank() == 0:
        print(f"{'':39}{'DDP(model)':13}find_unused_parameters=True")
    for name, (shape, *expected) in SHAPES.items():
        default = outcome_of_ddp(shape, device)
        searching = outcome_of_ddp(shape, device, find_unused_parameters=True)
        as_views = outcome_of_ddp(shape, device, gradient_as_bucket_view=True)
        if dist.get_rank() == 0:
            print(f"{name:39}{default:13}{searching}")
        assert [default, searching] == expected, f"{name}: expected {expected}"
        assert as_views == default, f"{name}: with gradient_as_bucket_view {as_views}"
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
