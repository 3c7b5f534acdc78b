"""Does a DDP communicate while backward goes on? Read from the order of events, by no clock. Lesson 09."""

import itertools
import os
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from shared.comm.record import CommRecord, record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group

POLL_S = 0.02
_KEYS = itertools.count()


class _CallInBackward(torch.autograd.Function):
    """Passes a tensor on as it is, and calls a function when backward comes by."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, function: Callable[[], None]) -> torch.Tensor:
        ctx.function = function
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.function()
        return gradient, None


class Chain(nn.Module):
    """Equal layers, used in the order of registration or in reverse: float64, (batch, 8) to (batch, 8).

    In backward, ``before_gradient(i)`` is called before the i-th gradient is computed, i from 0.
    """

    def __init__(self, layers: int = 6, in_reverse: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8, bias=False, dtype=torch.float64) for _ in range(layers))
        self.in_reverse = in_reverse
        self.before_gradient: Callable[[int], None] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layers = list(self.layers)
        if self.in_reverse:
            layers.reverse()
        for position, layer in enumerate(layers):
            x = torch.tanh(layer(x))
            if self.before_gradient is not None:
                x = _CallInBackward.apply(x, partial(self.before_gradient, len(layers) - 1 - position))
        return x


def events_of_backward(wrap: Callable, group: Group, in_reverse: bool = False) -> list[str]:
    """``"gradient ready"`` and kinds of operations in the third backward of a wrapped ``Chain``, in order.

    ``wrap(net, bucket_cap_mb=...)`` gets a cap that gives each gradient a bucket of its own. Collective.
    """
    net = Chain(in_reverse=in_reverse).to(group.device)
    logs: list[CommRecord] = []

    def mark(_: nn.Parameter) -> None:
        for log in logs:
            log.mark("gradient ready")

    for parameter in net.parameters():  # before the wrapper's own hooks, so that the mark comes first
        parameter.register_post_accumulate_grad_hook(mark)
    ddp = wrap(net, bucket_cap_mb=1e-6)
    for step in range(3):
        loss = ddp(torch.ones(2, 8, dtype=torch.float64, device=group.device)).sum()
        if step == 2:
            logs.append(record())
            with logs[0]:
                loss.backward()
        else:
            loss.backward()
    return logs[0].order()


def launched_before_last(events: list[str]) -> int:
    """How many all-reduces were launched before the last gradient was ready."""
    last = len(events) - 1 - events[::-1].index("gradient ready")
    return events[:last].count("all_reduce")


def blocks_in_backward(wrap: Callable, group: Group, patience_s: float) -> bool:
    """Whether a rank's backward stands still until the others join its all-reduces. Collective, no clock.

    The other ranks hold their backward up before the first gradient until rank 0 comes to its last one. A
    rank 0 that only launches gets there. One that waits for an all-reduce does not: then the others give up
    after ``patience_s``, which must be less than the timeout of the group, and go on.
    """
    server = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    store = dist.TCPStore(*server, is_master=False, timeout=timedelta(seconds=4 * patience_s))
    key = f"rank 0 came to its last gradient {next(_KEYS)}"
    gave_up: list[bool] = []

    def gate(gradient: int) -> None:
        if group.rank == 0 and gradient == layers - 1:
            store.set(key, "yes")
        elif group.rank > 0 and gradient == 0:
            for _ in range(int(patience_s / POLL_S)):
                if store.check([key]):
                    return
                time.sleep(POLL_S)
            gave_up.append(True)

    net = Chain().to(group.device)
    layers = len(net.layers)
    ddp = wrap(net, bucket_cap_mb=1e-6)
    for step in range(3):
        net.before_gradient = gate if step == 2 else None
        ddp(torch.ones(2, 8, dtype=torch.float64, device=group.device)).sum().backward()
    timeouts = torch.tensor([len(gave_up)], device=group.device)
    dist.all_reduce(timeouts)
    return bool(timeouts.item())


def assert_overlap(wrap: Callable, group: Group, patience_s: float) -> list[str]:
    """Return the events of a backward in which communication and computation overlap. Collective.

    Raises:
        CourseError: all-reduces leave only after backward; only where the order of use is that of
            registration do they leave earlier; or a rank waits inside backward.
    """
    events = events_of_backward(wrap, group)
    gradients = events.count("gradient ready")
    early = launched_before_last(events)
    if early < gradients - 1:
        raise CourseError(
            f"{early} all-reduces are launched before the last of {gradients} gradients is ready; with a "
            f"bucket for each gradient it must be {gradients - 1}: launch a bucket as soon as it is full"
        )
    early = launched_before_last(events_of_backward(wrap, group, in_reverse=True))
    if early < gradients - 1:
        raise CourseError(
            f"where layers are used in another order than they are registered, {early} all-reduces are "
            f"launched before the last gradient, not {gradients - 1}: let buckets follow the order of arrival"
        )
    if blocks_in_backward(wrap, group, patience_s):
        raise CourseError(
            "backward waits inside a hook until the other ranks join its all-reduce: launch with "
            "async_op=True, and wait when backward is over"
        )
    return events
