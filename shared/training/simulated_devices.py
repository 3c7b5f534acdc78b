"""Simulated devices on one CPU, and a count of what is transferred between them. Taught in lesson 07."""

from collections import Counter
from dataclasses import dataclass, field

import torch


@dataclass
class Link:
    """What went from one numbered device to another: ``transfers[(what, source, target)]``, in bytes.

    All simulated devices live in one memory, so nothing here says anything about time.
    """

    transfers: Counter = field(default_factory=Counter)

    def transfer(self, what: str, tensor: torch.Tensor, source: int, target: int) -> torch.Tensor:
        """Copy ``tensor`` from one simulated device to another, as ``tensor.to(device)`` does between GPUs.

        In backward its gradient goes from ``target`` to ``source`` and is counted as
        ``gradients of WHAT``. On the same device nothing is copied: the tensor itself comes back.
        """
        return tensor if source == target else _Transfer.apply(tensor, self, what, source, target)

    def count(self, what: str, tensor: torch.Tensor, source: int, target: int) -> None:
        self.transfers[what, source, target] += tensor.numel() * tensor.element_size()

    def through(self, device: int) -> dict[str, int]:
        """{what: bytes} of all that went into or out of ``device``."""
        totals: Counter = Counter()
        for (what, source, target), size in self.transfers.items():
            if device in (source, target):
                totals[what] += size
        return dict(totals)


class _Transfer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor: torch.Tensor, link: Link, what: str, source: int, target: int):
        ctx.link = link
        ctx.what = what
        ctx.ends = (source, target)
        link.count(what, tensor, source, target)
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        source, target = ctx.ends
        ctx.link.count(f"gradients of {ctx.what}", gradient, target, source)
        return gradient.clone(), None, None, None, None
