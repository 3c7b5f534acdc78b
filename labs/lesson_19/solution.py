"""Exercise 19: a sharded unit, with its backward."""

import torch
import torch.distributed as dist
from torch import nn


class ShardedUnit:
    """Shards the parameters of ``module`` over all ranks. No rank holds the whole longer than it computes.

    The parameters are equal on all ranks. Those that are frozen stay whole. The module returns one tensor,
    and each of its other parameters takes part in each backward.

    ``shard``, (length,), is this rank's part, for the optimizer, with a memory of its own. All trainable
    parameters, one behind the other and followed by zeros up to N * length, are the N shards in turn:
    ``whole``. Calls in a step: an all-gather in forward, one in backward, a reduce-scatter.
    """

    def __init__(self, module: nn.Module) -> None:
        self.ranks = dist.get_world_size()
        self.params = [p for p in module.parameters() if p.requires_grad]
        self.sizes = [p.numel() for p in self.params]
        numel = sum(self.sizes)
        self.whole = self.params[0].new_zeros(numel + -numel % self.ranks)
        for p, part in zip(self.params, self.whole[:numel].split(self.sizes), strict=True):
            part.copy_(p.detach().flatten())
            p.data = part.view(p.shape)  # it lives in ``whole`` now
        # solution: begin
        self.shard = nn.Parameter(self.whole.chunk(self.ranks)[dist.get_rank()].clone())
        self.reshard()
        # solution: end
        module.register_forward_pre_hook(self.before_forward)
        module.register_forward_hook(self.after_forward)
        for p in self.params:
            p.register_post_accumulate_grad_hook(self.after_gradient)

    def unshard(self) -> None:
        """Make the parameters whole again, in the storage in which they were: autograd points there."""
        # solution: begin
        self.whole.untyped_storage().resize_(self.whole.nbytes)
        dist.all_gather_into_tensor(self.whole, self.shard.detach())
        # solution: end

    def reshard(self) -> None:
        """Free the memory of the whole parameters."""
        # solution: begin
        self.whole.untyped_storage().resize_(0)
        # solution: end

    def before_forward(self, module: nn.Module, inputs: tuple) -> None:
        self.unshard()

    def after_forward(self, module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        """Forward is over. Backward will begin at ``output``, if it needs a gradient."""
        # solution: begin
        self.reshard()
        if output.requires_grad:
            output.register_hook(self.before_backward)
        # solution: end

    def before_backward(self, gradient: torch.Tensor) -> None:
        self.unshard()

    def take_gradients(self) -> torch.Tensor:
        """(N * length,): the gradients, laid out as ``whole`` is. Leaves each ``p.grad`` empty."""
        gradient = self.shard.new_zeros(self.ranks * len(self.shard))
        parts = gradient[: sum(self.sizes)].split(self.sizes)
        for p, part in zip(self.params, parts, strict=True):
            part.copy_(p.grad.flatten())
            p.grad = None
        return gradient

    def after_gradient(self, p: nn.Parameter) -> None:
        """Autograd calls this for each trainable parameter, when ``p.grad`` is complete.

        After the last of them, ``shard.grad`` holds this rank's part of the mean gradient over the ranks,
        added to what it held before, and each ``p.grad`` is None.
        """
        # solution: begin
        if any(p.grad is None for p in self.params):
            return
        self.reshard()
        gradient = self.take_gradients()
        mean = torch.empty_like(self.shard)
        dist.reduce_scatter_tensor(mean, gradient)
        mean /= self.ranks
        if self.shard.grad is None:
            self.shard.grad = mean
        else:
            self.shard.grad += mean
        # solution: end
