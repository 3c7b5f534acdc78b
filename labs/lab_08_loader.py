"""A training loop around DDP: a loader with a sampler, gradient accumulation, and a file with the model.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_08_loader.py
Written by:  notebooks/08_ddp.ipynb (edit it there)
"""

import os
import socket
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a group, or it holds it: exit code -6, lesson 08
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

EPOCHS = 10
MICRO_BATCH = 12  # of each rank
MICRO_BATCHES = 3  # in a step


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


def build() -> nn.Module:
    """Points of the plane, (batch, 2), to scores (batch, 2)."""
    return nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))


def points() -> TensorDataset:
    """1,000 points, and whether each lies in the unit circle; the same on all ranks."""
    x = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x.norm(dim=1) < 1).long())


def make_loader(data: Dataset) -> DataLoader:
    """This rank's part of the data, in micro-batches. All ranks get as many: what is left over is dropped."""
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    return DataLoader(data, MICRO_BATCH, sampler=sampler, drop_last=True)


def train_epoch(
    ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, loader: DataLoader, epoch: int
) -> torch.Tensor:
    """Train on this rank's part of one epoch; return the loss of its last step. Collective.

    Micro-batches that fill no step are left out.
    """
    device = next(ddp.parameters()).device
    loader.sampler.set_epoch(epoch)  # or every epoch has the same order
    optimizer.zero_grad()
    loss_of_step = torch.zeros((), device=device)
    for number, (x, y) in enumerate(loader):
        is_last = number % MICRO_BATCHES == MICRO_BATCHES - 1
        with nullcontext() if is_last else ddp.no_sync():  # around forward *and* backward
            loss = F.cross_entropy(ddp(x.to(device)), y.to(device)) / MICRO_BATCHES
            loss.backward()  # adds to p.grad; only the last one averages over the ranks
        loss_of_step += loss.detach()
        if is_last:
            mean_loss = loss_of_step
            optimizer.step()
            optimizer.zero_grad()
            loss_of_step = torch.zeros((), device=device)
    return mean_loss


def save(ddp: DistributedDataParallel, path: Path) -> None:
    """Write the model, without DDP's prefix `module.`, on rank 0. Collective: then all may read it."""
    if dist.get_rank() == 0:
        torch.save(ddp.module.state_dict(), path)
    dist.barrier()


def main() -> None:
    device = setup()
    torch.manual_seed(dist.get_rank())  # a different model on each rank, on purpose
    model = build().to(device)
    ddp = DistributedDataParallel(model, device_ids=[device.index] if device.type != "cpu" else None)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
    loader = make_loader(points())
    for epoch in range(EPOCHS):
        loss = train_epoch(ddp, optimizer, loader, epoch)
        dist.all_reduce(loss)
        loss /= dist.get_world_size()
        if dist.get_rank() == 0 and epoch % 3 == 0:
            print(f"epoch {epoch}: loss of the last step {loss.item():.3f}")
    assert loss < 0.3, "the model has not learned"

    # Yours is a folder that lasts, and that all ranks see.
    path = Path(tempfile.gettempdir()) / f"lab_08_loader_{os.environ['MASTER_PORT']}.pt"
    save(ddp, path)
    alone = build().to(device)  # as a program without DDP reads it
    alone.load_state_dict(torch.load(path, map_location=device))
    same = [torch.equal(a, b) for a, b in zip(alone.parameters(), model.parameters(), strict=True)]
    assert all(same), "the file was to hold the trained model"
    dist.barrier()  # all have read it
    if dist.get_rank() == 0:
        path.unlink()
        print("the file holds the model that all ranks have")
    dist.barrier()  # nobody leaves while another rank still communicates
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
