"""Floating-point operations of matrix products. Taught in lesson 20."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default)


class MatmulFlops(TorchDispatchMode):
    """Counts what matrix products compute on this thread, backward included.

        with MatmulFlops() as flops:
            model(x).sum().backward()
        flops.total  # a product of (m, k) and (k, n) adds 2 m n k

    ``torch.utils.flop_counter.FlopCounterMode`` counts the same and more kinds of operations. It imports
    torch's compiler and Triton first: over 2 s of CPU on each rank.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """As in ``CommRecord``: without this, torch would import its compiler."""
        return False

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation in PRODUCTS:
            left, right = args[-2:]
            self.total += 2 * left.numel() * right.shape[-1]
        return operation(*args, **(kwargs or {}))
