"""Shapes of training loops under DDP. Plays the one that is named, and says whether the ranks end equal.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_08_loops.py
Written by:  notebooks/08_ddp.ipynb (edit it there)
"""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU

ROWS = 4  # of a rank in a forward pass


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


def by_autograd_grad(model, a, b):
    parameters = list(model.parameters())
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss(model, a), parameters), strict=True):
        parameter.grad = gradient


SHAPES: dict[str, Callable] = {
    "forward, backward": one_backward,
    "two forwards, backward of the sum": sum_of_losses,
    "forward, backward, forward, backward": in_turn,
    "two forwards, two backwards": two_forwards_first,
    "forward, two backwards (retain_graph)": same_graph_twice,
    "no_sync: first forward and backward": accumulation,
    "no_sync: first backward alone": no_sync_around_backward,
    "no_sync: forward, not its backward": no_sync_around_forward,
    "forward, one under no_grad, backward": evaluation_in_between,
    "two networks in one wrapper, in turn": one_net_each,
    "checkpoint": checkpointed,
    "checkpoint, reentrant": partial(checkpointed, reentrant=True),
    "forward of ddp.module": around_the_wrapper,
    "forward, torch.autograd.grad": by_autograd_grad,
}


def main() -> None:
    name = " ".join(sys.argv[1:]) or "two forwards, two backwards"
    if name not in SHAPES:
        sys.exit(f"there is no shape {name!r}, but: {'; '.join(SHAPES)}")
    device = setup()
    torch.manual_seed(0)
    ddp = DistributedDataParallel(TwoNets().to(device))
    torch.manual_seed(1 + dist.get_rank())  # different data on each rank
    a, b = torch.randn(2, ROWS, 8, dtype=torch.float64).to(device)
    SHAPES[name](ddp, a, b)

    gradient = ddp.module.one[0].weight.grad
    from_rank_0 = gradient.clone()
    dist.broadcast(from_rank_0, src=0)
    apart = (gradient - from_rank_0).abs().max()
    dist.all_reduce(apart, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(f"{name}: the ranks' gradients differ by {apart.item():.3f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
