"""Shapes of training loops under DDP: how often the ranks average, and whether they equal one process.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_08/proof_shapes.py
"""

from collections.abc import Callable
from copy import deepcopy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run

from lab_08_loops import ROWS, SHAPES, TwoNets

ROUNDING = 1e4  # steps of the dtype: 2e-12 in float64

# {shape: (outcome with DDP's defaults, outcome with find_unused_parameters=True)}
OUTCOMES = {
    "forward, backward": ("1, equal", "1, equal"),
    "two forwards, backward of the sum": ("1, equal", "1, equal"),
    "forward, backward, forward, backward": ("2, equal", "2, equal"),
    "two forwards, two backwards": ("1, WRONG", "1, WRONG"),
    "forward, two backwards (retain_graph)": ("1, WRONG", "1, WRONG"),
    "no_sync: first forward and backward": ("1, equal", "1, equal"),
    "no_sync: first backward alone": ("2, equal", "2, equal"),
    "no_sync: forward, not its backward": ("0, WRONG", "0, WRONG"),
    "forward, one under no_grad, backward": ("1, equal", "1, equal"),
    "two networks in one wrapper, in turn": ("error", "2, equal"),
    "checkpoint": ("1, equal", "1, equal"),
    "checkpoint, reentrant": ("1, equal", "error"),
    "forward of ddp.module": ("0, WRONG", "0, WRONG"),
    "forward, torch.autograd.grad": ("0, WRONG", "0, WRONG"),
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
    with process_group(timeout_s=20) as group:
        print_on_rank_0(f"{'':39}{'DDP(model)':13}find_unused_parameters=True")
        for name, shape in SHAPES.items():
            default = outcome_of_ddp(shape, group.device)
            searching = outcome_of_ddp(shape, group.device, find_unused_parameters=True)
            as_views = outcome_of_ddp(shape, group.device, gradient_as_bucket_view=True)
            print_on_rank_0(f"{name:39}{default:13}{searching}")
            if (default, searching) != OUTCOMES[name] or as_views != default:
                raise CourseError(f"{name}: expected {OUTCOMES[name]}; as views {as_views}")


if __name__ == "__main__":
    run(main)
