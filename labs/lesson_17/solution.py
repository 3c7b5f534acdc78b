"""Exercise 17: the gated MLP of Llama, split over the ranks."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class CopyToRanks(torch.autograd.Function):
    """f: all ranks have the same ``x``, and each continues with its own columns."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the loss with respect to ``x``, the same on all ranks.

        ``gradient`` is what this rank has of it. Leave it as it is: other parts of a model may use it, too.
        """
        # solution: begin
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total
        # solution: end


class SumOverRanks(torch.autograd.Function):
    """g: each rank has a partial sum, and all continue with the sum."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the ranks' ``x``."""
        # solution: begin
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total
        # solution: end

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the loss with respect to this rank's partial sum.

        ``gradient`` is that with respect to the sum, the same on all ranks.
        """
        # solution: begin
        return gradient
        # solution: end


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)): (..., width) to (..., width). Each rank has 1/N of the hidden units.

    Args:
        whole: has ``gate`` and ``up``, nn.Linear(width, hidden), and ``down``, nn.Linear(hidden, width), all
            with biases. It is equal on all ranks. N divides ``hidden``.

    Of N consecutive parts of the hidden units, rank r has part r. Its parameters are ``gate_weight``,
    ``gate_bias``, ``up_weight``, ``up_bias``, ``down_weight`` and ``down_bias``.
    """

    def __init__(self, whole: nn.Module) -> None:
        """Make the six parameters, each an ``nn.Parameter`` with memory of its own."""
        super().__init__()
        rank, ranks = dist.get_rank(), dist.get_world_size()
        # solution: begin
        self.gate_weight = nn.Parameter(whole.gate.weight.detach().chunk(ranks, 0)[rank].clone())
        self.gate_bias = nn.Parameter(whole.gate.bias.detach().chunk(ranks, 0)[rank].clone())
        self.up_weight = nn.Parameter(whole.up.weight.detach().chunk(ranks, 0)[rank].clone())
        self.up_bias = nn.Parameter(whole.up.bias.detach().chunk(ranks, 0)[rank].clone())
        self.down_weight = nn.Parameter(whole.down.weight.detach().chunk(ranks, 1)[rank].clone())
        self.down_bias = nn.Parameter(whole.down.bias.detach().clone())
        # solution: end

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The whole result on all ranks. One all-reduce of that size forward, and one backward."""
        # solution: begin
        x = CopyToRanks.apply(x)
        hidden = F.silu(F.linear(x, self.gate_weight, self.gate_bias))
        hidden = hidden * F.linear(x, self.up_weight, self.up_bias)
        return SumOverRanks.apply(F.linear(hidden, self.down_weight)) + self.down_bias
        # solution: end
