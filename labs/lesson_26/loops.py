"""Failures of training loops under DDP: which forward belongs to which backward. Lesson 08 has the table."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lesson_26.stage import ERROR, WRONG, Case, collector

CASES: list[Case] = []
case = collector(CASES)


def apart(model: nn.Module) -> str:
    """How far a gradient of rank 0 is from rank 1's. Collective."""
    gradient = next(model.parameters()).grad
    gradients = [torch.empty_like(gradient) for _ in range(2)]
    dist.all_gather(gradients, gradient)
    distance = (gradients[0] - gradients[1]).abs().max().item()
    return f"gradients differ by {distance:.3f}" if distance else "equal gradients"


def wrapped(model: nn.Module) -> DistributedDataParallel:
    """The model in DDP, with the same parameters in each run."""
    draw = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=draw)
    return DistributedDataParallel(model)


def data_of(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two batches (4, 4) of a rank."""
    draw = torch.Generator().manual_seed(rank)
    return torch.randn(4, 4, generator=draw), torch.randn(4, 4, generator=draw)


@case(
    WRONG,
    says={0: "^gradients differ by"},
    right="^equal gradients$",
    symptom="two losses, such as a discriminator's: the loss is a little worse than on one GPU",
    did="called forward twice, then `backward()` twice",
    cause="a forward pass arms DDP for one backward pass: the second averages nothing",
    cure="one `backward()` of the sum; or forward, backward, forward, backward",
    lesson="08",
)
def two_forwards_two_backwards(rank: int, cured: bool) -> str:
    ddp = wrapped(nn.Linear(4, 1))
    losses = [ddp(x).square().mean() for x in data_of(rank)]
    if cured:
        sum(losses).backward()
    else:
        for loss in losses:
            loss.backward()
    return apart(ddp)


@case(
    WRONG,
    says={0: "^gradients differ by"},
    right="^equal gradients$",
    symptom="`backward()` twice through one graph: the loss is a little worse than on one GPU",
    did="called `backward(retain_graph=True)`, then `backward()` for another loss",
    cause="a forward pass arms DDP for one backward pass: the second averages nothing",
    cure="one `backward()` of the sum of the losses",
    lesson="08",
)
def two_backwards_of_one_forward(rank: int, cured: bool) -> str:
    ddp = wrapped(nn.Linear(4, 1))
    y = ddp(data_of(rank)[0])
    losses = [y.square().mean(), y.abs().mean()]
    if cured:
        sum(losses).backward()
    else:
        losses[0].backward(retain_graph=True)
        losses[1].backward()
    return apart(ddp)


@case(
    WRONG,
    says={0: "^gradients differ by"},
    right="^equal gradients$",
    symptom="`no_sync()` in the loop: with accumulation the loss is worse than with one large batch",
    did="ran a forward pass under `no_sync()`, and its backward pass, which should average, after it; or "
    "set `require_backward_grad_sync` between the two",
    cause="DDP decides in the forward pass whether the backward pass averages",
    cure="the last micro-batch outside of `no_sync()`, forward and backward",
    lesson="08",
)
def forward_under_no_sync(rank: int, cured: bool) -> str:
    ddp = wrapped(nn.Linear(4, 1))
    with nullcontext() if cured else ddp.no_sync():
        loss = ddp(data_of(rank)[0]).square().mean()
    loss.backward()
    return apart(ddp)


@case(
    ERROR,
    says={
        0: "one of the variables needed for gradient computation has been modified by an inplace operation"
    },
    symptom="`RuntimeError: one of the variables needed for gradient computation has been modified by an "
    "inplace operation`",
    right="^equal gradients$",
    did="with torch 2.11 or older (imitated here): called forward twice before `backward()`, and the "
    "model has a buffer, such as batch norm's",
    cause="before each forward, DDP writes rank 0's buffers into those that the first graph still needs",
    cure="torch 2.12 or newer ([#175851](https://github.com/pytorch/pytorch/pull/175851)); else "
    "`broadcast_buffers=False`, or one forward of both batches",
    lesson="08",
)
def buffers_between_two_forwards(rank: int, cured: bool) -> str:
    if not cured:  # as before #175851: autograd sees that the buffers change
        torch.autograd._unsafe_preserve_version_counter = lambda tensors: nullcontext()
    ddp = wrapped(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    losses = [ddp(x).square().mean() for x in data_of(rank)]
    sum(losses).backward()
    return apart(ddp)
