"""Batch normalization over the batches of all ranks, on any device. Taught in lesson 10."""

import torch
import torch.distributed as dist
from torch import nn


class _Normalize(torch.autograd.Function):
    """Normalize each channel by the mean and variance of the joined batch: one collective per pass.

    ``x`` is (batch, channels, ...). Each rank may hold another number of images, also none.
    """

    @staticmethod
    def forward(ctx, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, group):
        channels = x.shape[1]
        rows = _rows(x).to(weight.dtype)  # (values, channels): statistics want more digits than bf16 has
        mean = rows.mean(0) if len(rows) else rows.new_zeros(channels)
        count = rows.new_full((1,), len(rows))
        own = torch.cat([mean, (rows - mean).square().sum(0), count])  # 2 * channels + 1 numbers
        ranks = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
        dist.all_gather(ranks, own, group=group)

        means, squares, counts = torch.stack(ranks).split([channels, channels, 1], dim=1)
        total = counts.sum()
        mean = (counts * means).sum(0) / total
        var = (squares + counts * (means - mean).square()).sum(0) / total  # Chan et al.: no cancellation
        scale = (var + eps).rsqrt()
        normalized = (rows - mean) * scale
        ctx.save_for_backward(normalized, weight, scale, total)
        ctx.group = group
        ctx.shape = x.shape
        ctx.dtype = x.dtype
        ctx.mark_non_differentiable(mean, var, total)
        return _unrows(normalized * weight + bias, x.shape, x.dtype), mean, var, total

    @staticmethod
    def backward(ctx, grad: torch.Tensor, *_):
        normalized, weight, scale, total = ctx.saved_tensors
        rows = _rows(grad).to(weight.dtype)
        own_bias = rows.sum(0)
        own_weight = (rows * normalized).sum(0)
        sums = torch.cat([own_bias, own_weight])
        dist.all_reduce(sums, group=ctx.group)
        of_bias, of_weight = sums.chunk(2)
        of_rows = (rows - (of_bias + normalized * of_weight) / total) * (weight * scale)
        of_x = _unrows(of_rows, ctx.shape, ctx.dtype)
        return of_x, own_weight, own_bias, None, None  # DDP averages those of weight and bias


def _rows(x: torch.Tensor) -> torch.Tensor:
    """(batch, channels, ...) as (values, channels)."""
    return x.transpose(0, 1).flatten(1).T


def _unrows(rows: torch.Tensor, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """(values, channels) as (batch, channels, ...) again, no view: a ReLU in place may follow."""
    apart = rows.T.reshape(shape[1], shape[0], *shape[2:]).transpose(0, 1)
    return apart.to(dtype, copy=True, memory_format=torch.contiguous_format)


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """``nn.BatchNorm``, except that in training the batch is that of all ranks of ``group``.

    Every rank of the group must call it, forward and backward.
    """

    def __init__(self, like: nn.modules.batchnorm._BatchNorm, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(like.num_features, like.eps, like.momentum, like.affine, like.track_running_stats)
        self._parameters = like._parameters
        self._buffers = like._buffers
        self.group = group
        self.train(like.training)

    def _check_input_dim(self, x: torch.Tensor) -> None:
        if x.dim() < 2:
            raise ValueError(f"wants (batch, channels, ...), not {tuple(x.shape)}")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return super().forward(x)
        self._check_input_dim(x)
        out, mean, var, total = _Normalize.apply(x, self.weight, self.bias, self.eps, self.group)
        self._follow(mean, var * total / (total - 1))  # unbiased, as BatchNorm's
        return out

    @torch.no_grad()
    def _follow(self, mean: torch.Tensor, var: torch.Tensor) -> None:
        """Move the running statistics towards those of a batch."""
        assert self.num_batches_tracked is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        self.num_batches_tracked += 1
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(var, self.momentum)


def convert_batch_norm(module: nn.Module, group: dist.ProcessGroup | None = None) -> nn.Module:
    """Replace each ``nn.BatchNorm`` in ``module`` by one over all ranks, which shares its parameters.

    Raises:
        ValueError: a layer lacks weights or running statistics, or averages them without momentum.
    """
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        if not (module.affine and module.track_running_stats and module.momentum is not None):
            raise ValueError(f"only with affine, track_running_stats and momentum: {module}")
        return SyncBatchNorm(module, group)
    for name, child in module.named_children():
        setattr(module, name, convert_batch_norm(child, group))
    return module
