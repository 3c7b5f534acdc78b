"""ZeRO-1: each rank keeps the optimizer state of 1/N of the parameters.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_18_zero_1.py
Written by:  notebooks/18_sharded_optimizer.ipynb
"""

import os
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a group, or it holds it: exit code -6, lesson 08
from torch import nn


class Zero1:
    """An optimizer whose state is spread evenly over the ranks of ``group``; all of them must call it.

    ``flat``, (N * length,), holds the trainable parameters one behind the other, then zeros up to a multiple
    of N. ``gradient`` has the same layout. Parameters and their gradients become views of the two. ``part``,
    (length,), is this rank's part of ``flat``; the optimizer that ``build`` makes knows nothing else. It must
    treat each number by itself, as Adam and SGD do. Source: Rajbhandari et al., ZeRO, 2020, arXiv 1910.02054.
    """

    def __init__(
        self, params: Iterable[nn.Parameter], build: Callable, group: dist.ProcessGroup | None = None
    ):
        self.group = group
        self.ranks = dist.get_world_size(group)
        self.params = [p for p in params if p.requires_grad]
        numel = sum(p.numel() for p in self.params)
        self.flat = self.params[0].new_zeros(numel + -numel % self.ranks)
        self.gradient = torch.zeros_like(self.flat)
        start = 0
        for p in self.params:
            end = start + p.numel()
            self.flat[start:end] = p.detach().flatten()
            p.data = self.flat[start:end].view_as(p)
            p.grad = self.gradient[start:end].view_as(p)  # backward adds to it
            start = end
        self.part = self.flat.chunk(self.ranks)[dist.get_rank(group)]
        self.shard = nn.Parameter(self.part)  # the same memory
        self.optimizer = build([self.shard])

    def step(self) -> None:
        self.shard.grad = self.average_gradient()
        self.optimizer.step()
        self.shard.grad = None
        self.gather_parameters()

    def average_gradient(self) -> torch.Tensor:
        """Reduce-scatter: (length,), this rank's part of the gradient's mean over the ranks."""
        mean = torch.empty_like(self.part)
        dist.reduce_scatter_tensor(mean, self.gradient, op=dist.ReduceOp.AVG, group=self.group)
        return mean

    def gather_parameters(self) -> None:
        """All-gather: the parts that the other ranks have updated."""
        dist.all_gather_into_tensor(self.flat, self.part, group=self.group)

    def zero_grad(self) -> None:
        self.gradient.zero_()  # p.grad = None would cut the tie between p.grad and the gradient


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
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    optimizer = Zero1(model.parameters(), lambda params: torch.optim.Adam(params, lr=0.01))
    torch.manual_seed(rank)  # each rank has data of its own
    x = torch.randn(256, 32, device=device)
    y = x[:, :1] * x[:, 1:2]
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    own = optimizer.optimizer.state[optimizer.shard]
    state = own["exp_avg"].nbytes + own["exp_avg_sq"].nbytes
    assert state == 2 * optimizer.flat.nbytes // ranks, "two moments of 1/N of the parameters"
    checksums = [None] * ranks
    dist.all_gather_object(checksums, (state, sum(p.double().sum().item() for p in model.parameters())))
    assert len(set(checksums)) == 1, f"the ranks have different parameters: {checksums}"
    assert losses[-1] < 0.5 * losses[0], losses
    if rank == 0:
        whole = 2 * sum(p.nbytes for p in model.parameters())
        for r, (size, _) in enumerate(checksums):
            print(f"[rank {r}] keeps {size:,} of {whole:,} bytes of Adam's state")
        print(f"loss of rank 0: {losses[0]:.2f} -> {losses[-1]:.2f}; all ranks have the same parameters")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
