"""An MLP over all ranks: the first layer is split by columns, the second by rows.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_17_mlp.py
Written by:  notebooks/17_tensor_parallel.ipynb (edit it there)
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU


class CopyToRanks(torch.autograd.Function):
    """Megatron's f: before a layer that is split by columns. Shoeybi et al., 2019, arXiv 1909.08053.

    Forward: the identity. Backward: each rank knows what came back through its own columns; the sum is right.
    """

    @staticmethod
    def forward(ctx, x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = gradient.clone(memory_format=torch.contiguous_format)  # others may hold this gradient, too
        dist.all_reduce(total, group=ctx.group)
        return total, None


class SumOverRanks(torch.autograd.Function):
    """Megatron's g: after a layer that is split by rows.

    Forward: the sum over the ranks. Backward: the identity, as each partial sum counts once in the sum.
    """

    @staticmethod
    def forward(ctx, x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def part_of(whole: torch.Tensor, dim: int, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """This rank's part of ``whole``, cut along ``dim``. Raises ``ValueError`` if it cannot be cut evenly."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    if whole.shape[dim] % ranks:
        raise ValueError(f"{whole.shape[dim]} rows or columns cannot be divided by {ranks} ranks")
    return whole.detach().chunk(ranks, dim)[rank].clone(memory_format=torch.contiguous_format)


class ColumnParallelLinear(nn.Module):
    """(..., in) to (..., out / N): this rank's part of the outputs.

    ``whole.weight`` is (out, in), because torch computes ``x @ weight.T``. So the columns of the matrix in
    the formula are rows of ``weight``. ``enter`` is None where several layers share one f.
    """

    def __init__(
        self,
        whole: nn.Linear,
        group: dist.ProcessGroup | None = None,
        enter: Callable | None = CopyToRanks.apply,
    ) -> None:
        super().__init__()
        self.group = group
        self.enter = enter
        self.weight = nn.Parameter(part_of(whole.weight, 0, group))
        self.bias = None
        if whole.bias is not None:
            self.bias = nn.Parameter(part_of(whole.bias, 0, group))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.enter is not None:
            x = self.enter(x, self.group)
        return F.linear(x, self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """(..., in / N) to (..., out). All ranks hold the bias, which is added once, to the sum."""

    def __init__(
        self, whole: nn.Linear, group: dist.ProcessGroup | None = None, leave: Callable = SumOverRanks.apply
    ) -> None:
        super().__init__()
        self.group = group
        self.leave = leave
        self.weight = nn.Parameter(part_of(whole.weight, 1, group))
        self.bias = None
        if whole.bias is not None:
            self.bias = nn.Parameter(whole.bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = self.leave(F.linear(x, self.weight), self.group)
        return total if self.bias is None else total + self.bias


def gradient_norm(split: list, copied: list, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Of the whole model: parts add up over the ranks, what all ranks hold counts once. On all ranks."""
    square = sum(p.grad.square().sum() for p in split)
    dist.all_reduce(square, group=group)
    return (square + sum(p.grad.square().sum() for p in copied)).sqrt()


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(rank)  # the ranks begin with different numbers
    width = 8 * ranks
    for bias in (True, False):
        up = nn.Linear(width, 4 * width, bias=bias, dtype=torch.float64, device=device)
        down = nn.Linear(4 * width, width, bias=bias, dtype=torch.float64, device=device)
        x = torch.randn(16, width, dtype=torch.float64, device=device)
        for tensor in (*up.parameters(), *down.parameters(), x):
            dist.broadcast(tensor.detach(), src=0)  # one truth, and the same input for all
        x_alone = x.clone().requires_grad_()
        y_alone = down(F.gelu(up(x_alone)))
        y_alone.square().mean().backward()
        everything = torch.cat([p.grad.flatten() for p in (*up.parameters(), *down.parameters())])

        columns, rows = ColumnParallelLinear(up), RowParallelLinear(down)
        x_split = x.clone().requires_grad_()
        y_split = rows(F.gelu(columns(x_split)))
        y_split.square().mean().backward()
        pairs = {
            "output": (y_split, y_alone),
            "gradient of the input": (x_split.grad, x_alone.grad),
            "gradient of the columns": (columns.weight.grad, part_of(up.weight.grad, 0)),
            "gradient of the rows": (rows.weight.grad, part_of(down.weight.grad, 1)),
        }
        split, copied = [columns.weight, rows.weight], []
        if bias:
            pairs["gradient of the columns' bias"] = (columns.bias.grad, part_of(up.bias.grad, 0))
            pairs["gradient of the bias that all have"] = (rows.bias.grad, down.bias.grad)
            split.append(columns.bias)
            copied.append(rows.bias)
        pairs["norm of the gradient"] = (gradient_norm(split, copied), everything.norm())
        for name, (ours, alone) in pairs.items():
            off = (ours - alone).abs().max().item()
            assert off < 1e-12, f"rank {rank}, biases {bias}: {name} differs by {off:.1e}"
        if rank == 0:
            held = sum(p.numel() for p in (*columns.parameters(), *rows.parameters()))
            print(f"each of {ranks} ranks holds {held:,} of {everything.numel():,} parameters")
            print(f"equal to one process: {', '.join(pairs)}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
