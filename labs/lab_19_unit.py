"""A unit of FSDP in plain torch: each rank keeps a shard of it, and has the whole only while it computes.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_19_unit.py
Written by:  notebooks/19_fsdp.ipynb
"""

import os

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a group, or it holds it: exit code -6, lesson 08
import torch.nn.functional as F
from torch import nn


class Unit:
    """Shards the trainable parameters of ``module`` over all ranks, which must begin with the same values.

    ``unsharded``, (N * length,), holds the parameters one behind the other, then zeros up to a multiple of N;
    they are views of it. Its storage is emptied and filled again, but stays the same: autograd's saved
    tensors point there. ``shard``, (length,), is for the optimizer, and gets the mean gradient. The module
    must return one tensor, and each parameter must take part in each backward. See arXiv 2304.11277.
    """

    def __init__(self, module: nn.Module) -> None:
        self.params = [p for p in module.parameters() if p.requires_grad]
        ranks = dist.get_world_size()
        numel = sum(p.numel() for p in self.params)
        self.unsharded = self.params[0].new_zeros(numel + -numel % ranks)
        for p, place in zip(self.params, self.views(self.unsharded), strict=True):
            place.copy_(p.detach())
            p.data = place
            p.register_post_accumulate_grad_hook(self.after_gradient)
        self.shard = nn.Parameter(self.unsharded.chunk(ranks)[dist.get_rank()].clone())
        module.register_forward_pre_hook(self.before_forward)
        module.register_forward_hook(self.after_forward)
        self.reshard()

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The places of the parameters in ``flat``, in their shapes."""
        sizes = [p.numel() for p in self.params]
        parts = flat[: sum(sizes)].split(sizes)
        return [part.view(p.shape) for part, p in zip(parts, self.params, strict=True)]

    def unshard(self) -> None:
        self.unsharded.untyped_storage().resize_(self.unsharded.nbytes)
        dist.all_gather_into_tensor(self.unsharded, self.shard.detach())

    def reshard(self) -> None:
        self.unsharded.untyped_storage().resize_(0)

    def before_forward(self, module: nn.Module, inputs: tuple) -> None:
        self.unshard()

    def after_forward(self, module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        self.reshard()
        if output.requires_grad:
            output.register_hook(self.before_backward)

    def before_backward(self, gradient: torch.Tensor) -> None:
        self.unshard()

    def after_gradient(self, p: nn.Parameter) -> None:
        if all(p.grad is not None for p in self.params):
            self.reshard()
            self.reduce_gradients()

    def reduce_gradients(self) -> None:
        flat = self.shard.new_zeros(dist.get_world_size() * len(self.shard))
        for p, place in zip(self.params, self.views(flat), strict=True):
            place.copy_(p.grad)
            p.grad = None
        mean = torch.empty_like(self.shard)
        dist.reduce_scatter_tensor(mean, flat, op=dist.ReduceOp.AVG)
        if self.shard.grad is None:
            self.shard.grad = mean
        else:
            self.shard.grad += mean  # another backward since the last step


def setup() -> torch.device:
    """Join the group that torchrun describes; return this rank's device: a GPU of its own, else the CPU."""
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu")
    device_id = None
    if torch.accelerator.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device(torch.accelerator.current_accelerator().type, local_rank)
        device_id = device
        torch.accelerator.set_device_index(local_rank)
    dist.init_process_group(dist.get_default_backend_for_device(device), device_id=device_id)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks on {device.type} with {dist.get_backend()}")
    return device


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)  # all ranks begin with the same parameters
    blocks = [nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(4)]
    model = nn.Sequential(*blocks, nn.Linear(32, 1)).to(device)
    whole = sum(p.nbytes for p in model.parameters())
    units = [Unit(module) for module in model]
    optimizer = torch.optim.Adam([unit.shard for unit in units], lr=0.01)
    torch.manual_seed(rank)  # each rank has data of its own
    x = torch.randn(256, 32, device=device)
    y = x[:, :1] * x[:, 1:2]
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    kept = sum(unit.shard.nbytes for unit in units)
    left = sum(unit.unsharded.untyped_storage().nbytes() for unit in units)
    assert left == 0, "between steps no unit is whole"
    assert whole <= kept * ranks <= whole + 4 * ranks * len(units), "shards of 1/N, padded"
    everyone = [None] * ranks
    dist.all_gather_object(everyone, kept)
    assert losses[-1] < 0.7 * losses[0], losses
    if rank == 0:
        for r, size in enumerate(everyone):
            print(f"[rank {r}] keeps {size:,} of {whole:,} bytes of parameters")
        print(f"loss of rank 0: {losses[0]:.2f} -> {losses[-1]:.2f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
