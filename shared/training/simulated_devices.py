"""Stand-ins for devices on one CPU, and a count of what crosses between them. Taught in lesson 07."""

from collections import Counter
from dataclasses import dataclass, field

import torch


@dataclass
class Wire:
    """What crossed between numbered stand-ins: ``crossings[(what, source, target)]`` is a number of bytes.

    All stand-ins live in one memory, so nothing here says anything about time.
    """

    crossings: Counter = field(default_factory=Counter)

    def cross(self, what: str, tensor: torch.Tensor, source: int, target: int) -> torch.Tensor:
        """Copy ``tensor`` from one stand-in to another, as ``tensor.to(device)`` does between GPUs.

        Backward, its gradient crosses from ``target`` to ``source`` and is counted as
        ``gradients of WHAT``. On the same stand-in nothing crosses: the tensor itself comes back.
        """
        return tensor if source == target else _Crossing.apply(tensor, self, what, source, target)

    def count(self, what: str, tensor: torch.Tensor, source: int, target: int) -> None:
        self.crossings[what, source, target] += tensor.numel() * tensor.element_size()

    def through(self, device: int) -> dict[str, int]:
        """{what: bytes} of all that crossed into or out of ``device``."""
        found: Counter = Counter()
        for (what, source, target), size in self.crossings.items():
            if device in (source, target):
                found[what] += size
        return dict(found)


class _Crossing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor: torch.Tensor, wire: Wire, what: str, source: int, target: int):
        ctx.wire, ctx.what, ctx.ends = wire, what, (source, target)
        wire.count(what, tensor, source, target)
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        source, target = ctx.ends
        ctx.wire.count(f"gradients of {ctx.what}", gradient, target, source)
        return gradient.clone(), None, None, None, None
