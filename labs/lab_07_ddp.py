"""Training with DistributedDataParallel: one process per device, each with its own part of the batch.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_07_ddp.py
Written by:  notebooks/07_dp_vs_ddp.ipynb (edit it there)
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

STEPS = 100
BATCH = 840  # of all ranks together; divides by 1 to 8


def part_of_rank(tensor: torch.Tensor, rank: int, world_size: int) -> torch.Tensor:
    """Return this rank's rows of a batch (batch, ...); ``world_size`` divides their number."""
    return tensor.chunk(world_size)[rank]


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> float:
    """Do one step on ``x`` (n, features) and ``y`` (n,), and return their mean loss.

    With DDP it is collective: ``backward`` averages the gradients over the ranks.
    """
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


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


def main() -> None:
    device = setup()
    rank, world_size = dist.get_rank(), dist.get_world_size()

    points = torch.rand(BATCH, 2, generator=torch.Generator().manual_seed(0))  # of a square
    in_disc = ((points - 0.5).norm(dim=1) < 0.4).long()
    x = part_of_rank(points, rank, world_size).to(device)
    y = part_of_rank(in_disc, rank, world_size).to(device)

    torch.manual_seed(rank)  # a different model on each rank: DDP's constructor makes them equal
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
    ddp = DistributedDataParallel(model, device_ids=[device.index] if device.type != "cpu" else None)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.3, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        losses.append(train_step(ddp, optimizer, x, y))

    for parameter in model.parameters():
        from_rank_0 = parameter.detach().clone()
        dist.broadcast(from_rank_0, src=0)
        assert torch.equal(parameter, from_rank_0), "the ranks hold different parameters"
    assert losses[-1] < losses[0] / 2, "the model has not learned"
    if rank == 0:
        print(f"loss of rank 0's part: {losses[0]:.4f} at first, {losses[-1]:.4f} in step {STEPS}")
        print(f"all {world_size} ranks hold the same parameters")
    dist.barrier()  # nobody leaves while another rank still communicates
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
