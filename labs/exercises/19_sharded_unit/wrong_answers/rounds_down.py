# rejected: elements, expected
"""Has no padding: the last elements are in no shard."""

import torch
import torch.distributed as dist
from torch import nn


class ShardedUnit:
    def __init__(self, module: nn.Module) -> None:
        self.ranks = dist.get_world_size()
        self.params = [p for p in module.parameters() if p.requires_grad]
        self.sizes = [p.numel() for p in self.params]
        flat = torch.cat([p.detach().flatten() for p in self.params])
        self.whole = flat.new_zeros(len(flat) + -len(flat) % self.ranks)
        self.whole[: len(flat)] = flat
        length = len(flat) // self.ranks
        for p, part in zip(self.params, self.whole[: len(flat)].split(self.sizes), strict=True):
            p.data = part.view(p.shape)
        self.shard = nn.Parameter(self.whole[dist.get_rank() * length :][:length].clone())
        self.reshard()
        module.register_forward_pre_hook(self.before_forward)
        module.register_forward_hook(self.after_forward)
        for p in self.params:
            p.register_post_accumulate_grad_hook(self.after_gradient)

    def unshard(self) -> None:
        self.whole.untyped_storage().resize_(self.whole.nbytes)
        dist.all_gather_into_tensor(self.whole, self.shard.detach())

    def reshard(self) -> None:
        self.whole.untyped_storage().resize_(0)

    def before_forward(self, module: nn.Module, inputs: tuple) -> None:
        self.unshard()

    def after_forward(self, module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        self.reshard()
        output.register_hook(self.before_backward)

    def before_backward(self, gradient: torch.Tensor) -> None:
        self.unshard()

    def after_gradient(self, p: nn.Parameter) -> None:
        if any(p.grad is None for p in self.params):
            return
        self.reshard()
        gradient = self.shard.new_zeros(self.ranks * len(self.shard))
        parts = gradient[: sum(self.sizes)].split(self.sizes)
        for p, part in zip(self.params, parts, strict=True):
            part.copy_(p.grad.flatten())
            p.grad = None
        mean = torch.empty_like(self.shard)
        dist.reduce_scatter_tensor(mean, gradient)
        mean /= self.ranks
        if self.shard.grad is None:
            self.shard.grad = mean
        else:
            self.shard.grad += mean
