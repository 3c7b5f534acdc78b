"""Batch normalization over the batches of all ranks, on any device. Taught in lesson 10."""

import torch
import torch.distributed as dist
from torch import nn


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
        ctx.group = group
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return SumOverRanks.forward(ctx, grad, ctx.group), None


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """``nn.BatchNorm``, except that in training the batch is that of all ranks of ``group``.

    Each pass has one all-reduce: every rank of the group must call it, forward and backward, with any number
    of images. It subtracts squares: with a mean far from 0 it needs float64.
    """

    def __init__(self, like: nn.modules.batchnorm._BatchNorm, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(like.num_features, like.eps, like.momentum)
        self._parameters = like._parameters
        self._buffers = like._buffers
        self.group = group
        self.train(like.training)

    def _check_input_dim(self, x: torch.Tensor) -> None:
        """Any (batch, channels, ...) will do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return super().forward(x)
        rows = x.transpose(0, 1).flatten(1)  # (channels, values)
        own = torch.cat([rows.sum(1), rows.square().sum(1), rows.new_full((1,), rows.shape[1])])
        sums, squares, count = SumOverRanks.apply(own, self.group).split([len(rows), len(rows), 1])
        mean = sums / count
        var = squares / count - mean.square()
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var * count / (count - 1), self.momentum)  # unbiased, as BatchNorm's
        scale = self.weight * (var + self.eps).rsqrt()
        shape = (-1, *[1] * (x.dim() - 2))
        return (x - mean.view(shape)) * scale.view(shape) + self.bias.view(shape)


def convert_batch_norm(module: nn.Module, group: dist.ProcessGroup | None = None) -> nn.Module:
    """Replace each ``nn.BatchNorm`` in ``module`` by one over all ranks, which shares its parameters."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return SyncBatchNorm(module, group)
    for name, child in module.named_children():
        setattr(module, name, convert_batch_norm(child, group))
    return module
