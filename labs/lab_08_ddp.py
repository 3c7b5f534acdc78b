"""DistributedDataParallel (DDP) as a script uses it: set up, wrap a model, train, clean up.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_08_ddp.py
Written by:  notebooks/08_ddp.ipynb (edit it there)
"""

import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a group, or it holds it: exit code -6, lesson 08
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def setup() -> torch.device:
    """Join the group that the launcher describes; return this rank's device: a GPU of its own, or the CPU.

    The CPU is for jobs without a GPU, and for RANK_BY_RANK_DEVICE=cpu. A job with too few GPUs ends here.
    """
    device = torch.device("cpu")
    gpu = "none"
    if torch.cuda.device_count() > 0 and os.environ.get("RANK_BY_RANK_DEVICE") != "cpu":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        gpu = str(torch.cuda.get_device_properties(device).uuid)
    store, rank, world_size = next(dist.rendezvous("env://"))
    store.set(f"GPU of rank {rank}", gpu)  # all ranks must choose the same backend
    gpus = set(store.multi_get([f"GPU of rank {other}" for other in range(world_size)])) - {b"none"}
    if 0 < len(gpus) < world_size:
        mine = f"rank {rank} on {socket.gethostname()} has {device}"
        ways = "start one rank for each GPU, or all with RANK_BY_RANK_DEVICE=cpu"
        sys.exit(f"{world_size} ranks, {len(gpus)} GPUs ({mine}): {ways}")
    backend = "nccl" if gpus else "gloo"
    bound = device if gpus else None
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, device_id=bound)
    if rank == 0:
        print(f"{world_size} ranks on {device.type} with {backend}")
    return device


def cleanup() -> None:
    """Wait for everyone, then leave the group."""
    dist.barrier()
    dist.destroy_process_group()


def wrap(model: nn.Module, device: torch.device) -> DistributedDataParallel:
    """The model, whose parameters and buffers become rank 0's, and whose gradients are averaged."""
    return DistributedDataParallel(model, device_ids=[device.index] if device.type != "cpu" else None)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> float:
    """Forward, backward, update: the same lines for one process and for DDP. Returns the mean loss."""
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()  # DDP averages the gradients of all ranks in here
    optimizer.step()
    return loss.item()


def sums_of_all_ranks(model: nn.Module) -> list[float]:
    """The sum of the parameters, of each rank. Collective."""
    sums = [0.0] * dist.get_world_size()
    dist.all_gather_object(sums, sum(p.sum().item() for p in model.parameters()))
    return sums


def main() -> None:
    device = setup()
    rank, world_size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(rank)  # a different model on each rank, on purpose
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2)).to(device)
    before = sums_of_all_ranks(model)
    ddp = wrap(model, device)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5)
    start = sums_of_all_ranks(ddp)

    same_everywhere = torch.Generator().manual_seed(0)
    for step in range(200):
        points = torch.randn(48, 2, generator=same_everywhere)  # the global batch
        inside = (points.norm(dim=1) < 1).long()  # the class: does a point lie in the unit circle?
        mine = slice(rank, None, world_size)  # DDP does not divide the data, each rank takes its part
        loss = train_step(ddp, optimizer, points[mine].to(device), inside[mine].to(device))
        if rank == 0 and step % 50 == 49:
            print(f"step {step + 1}: loss of rank 0's part {loss:.3f}")
    end = sums_of_all_ranks(ddp)
    if rank == 0:
        for r in range(world_size):
            print(
                f"rank {r}: parameters sum to {before[r]:.3f}, wrapped {start[r]:.3f}, trained {end[r]:.3f}"
            )
    assert start == [before[0]] * world_size, "DDP's constructor sends rank 0's parameters to all"
    assert end == [end[0]] * world_size, "equal gradients keep equal parameters equal"
    cleanup()


if __name__ == "__main__":
    main()
