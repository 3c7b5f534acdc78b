"""A unit of FSDP in plain torch: each rank keeps a shard of it, and has the whole only while it computes.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_19_unit.py
Written by:  notebooks/19_fsdp.ipynb (edit it there)
"""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.autograd import Variable

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU


class Unit:
    """Shards the trainable parameters of ``module`` over all ranks, which must begin with the same values.

    Args:
        module: returns one tensor. It must not share parameters with a module outside, nor contain another
            unit. A backward pass that reaches it must use all of its trainable parameters.
        compute_dtype: of what is gathered and computed with, and of floating-point inputs, such as
            ``torch.bfloat16``. The shard and the reduction of gradients stay in the parameters' own dtype.
            Frozen parameters are not sharded, and are cast for good.

    ``shard``, (length,), is what the optimizer gets, with the mean of the gradients in ``.grad``. The
    parameters are views of ``whole``, (N * length,): all of them one behind the other, then zeros up to a
    multiple of N. Its storage is emptied and filled again, but stays the same: autograd's saved tensors
    point there. ``full()`` gathers the values. See arXiv 2304.11277.
    """

    def __init__(self, module: nn.Module, compute_dtype: torch.dtype | None = None) -> None:
        self.ranks = dist.get_world_size()
        self.params = [p for p in module.parameters() if p.requires_grad]
        if any(hasattr(p, "in_unit") for p in self.params):
            raise ValueError("a parameter is in another unit: put layers that share one into the same unit")
        numel = sum(p.numel() for p in self.params)
        flat = self.params[0].new_zeros(numel + -numel % self.ranks)
        for p, place in zip(self.params, self.views(flat), strict=True):
            place.copy_(p.detach())
        self.shard = nn.Parameter(flat.chunk(self.ranks)[dist.get_rank()].clone())
        self.whole = flat.to(compute_dtype or flat.dtype)
        for p in module.parameters():
            if not p.requires_grad:
                p.data = p.data.to(self.whole.dtype)
        for p, place in zip(self.params, self.views(self.whole), strict=True):
            p.data = place
            p.in_unit = True
            p.register_post_accumulate_grad_hook(self.after_gradient)
        module.register_forward_pre_hook(self.before_forward)
        module.register_forward_hook(self.after_forward)
        self.reshard()

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The places of the parameters in ``flat``, in their shapes."""
        sizes = [p.numel() for p in self.params]
        parts = flat[: sum(sizes)].split(sizes)
        return [part.view(p.shape) for part, p in zip(parts, self.params, strict=True)]

    def unshard(self) -> None:
        self.whole.untyped_storage().resize_(self.whole.nbytes)
        dist.all_gather_into_tensor(self.whole, self.shard.detach().to(self.whole.dtype))

    def reshard(self) -> None:
        self.whole.untyped_storage().resize_(0)

    def before_forward(self, module: nn.Module, inputs: tuple) -> tuple:
        self.unshard()
        return tuple(
            value.to(self.whole.dtype) if torch.is_tensor(value) and value.is_floating_point() else value
            for value in inputs
        )

    def after_forward(self, module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        self.reshard()
        if output.requires_grad:
            output.register_hook(self.before_backward)

    def before_backward(self, gradient: torch.Tensor) -> None:
        self.unshard()
        Variable._execution_engine.queue_callback(self.after_backward)  # as FSDP2 does

    def after_backward(self) -> None:
        if self.whole.untyped_storage().nbytes() > 0:
            raise RuntimeError("after backward a unit is still whole: it did not use all of its parameters")

    def after_gradient(self, p: nn.Parameter) -> None:
        if all(param.grad is not None for param in self.params):
            self.reshard()
            self.reduce_gradients()

    def reduce_gradients(self) -> None:
        flat = self.shard.new_zeros(self.ranks * len(self.shard))
        for p, place in zip(self.params, self.views(flat), strict=True):
            place.copy_(p.grad)
            p.grad = None
        mean = torch.empty_like(self.shard)
        dist.reduce_scatter_tensor(mean, flat, op=dist.ReduceOp.AVG)
        if self.shard.grad is None:
            self.shard.grad = mean
        else:
            self.shard.grad += mean  # another backward pass since the last step

    def full(self) -> list[torch.Tensor]:
        """Copies of the whole parameters, as precise as the shard. All ranks must call it."""
        flat = self.shard.new_empty(self.ranks * len(self.shard))
        dist.all_gather_into_tensor(flat, self.shard.detach())
        return self.views(flat)


def main(steps: int) -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)  # all ranks begin with the same parameters
    blocks = [nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(2)]
    model = nn.Sequential(*blocks, nn.Linear(32, 1)).to(device)
    whole = sum(p.nbytes for p in model.parameters())
    units = [Unit(module, compute_dtype=torch.bfloat16) for module in model]
    optimizer = torch.optim.Adam([unit.shard for unit in units], lr=0.01)
    torch.manual_seed(rank)  # each rank has data of its own
    x = torch.randn(256, 32, device=device)
    y = x[:, :1] * x[:, 1:2]
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x).float(), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    kept = sum(unit.shard.nbytes for unit in units)
    assert whole <= kept * ranks <= whole + 4 * ranks * len(units), "shards of 1/N, padded"
    assert steps < 50 or losses[-1] < 0.7 * losses[0], losses
    shape = tuple(units[-1].full()[0].shape)
    if rank == 0:
        print(f"rank 0 keeps {kept:,} of {whole:,} bytes of parameters; gathered, the last weight is {shape}")
        print(f"loss of rank 0: {losses[0]:.2f} -> {losses[-1]:.2f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
