"""A training script with DistributedDataParallel (DDP): join, wrap, train, evaluate, save, leave.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_08_ddp.py
Written by:  notebooks/08_ddp.ipynb (edit it there)
"""

import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU

EPOCHS = 12
MICRO_BATCH = 12  # samples of one rank in one forward pass
MICRO_BATCHES = 3  # of one rank in one step: a step sees ranks x 3 x 12 samples
MODEL = Path(tempfile.gettempdir()) / "lab_08_ddp.pt"  # in your script: a folder that lasts


def build() -> nn.Module:
    """Points of the plane, (batch, 2), to scores (batch, 2)."""
    return nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))


def points(count: int, seed: int) -> TensorDataset:
    """Points, and whether each lies in the unit circle; the same on all ranks."""
    x = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x.norm(dim=1) < 1).long())


def wrap(model: nn.Module, device: torch.device) -> DistributedDataParallel:
    """The model, whose parameters and buffers become rank 0's, and whose gradients are averaged."""
    return DistributedDataParallel(model, device_ids=[device.index] if device.type != "cpu" else None)


def make_loader(data: Dataset) -> DataLoader:
    """This rank's part of the data, in micro-batches, the same number on all ranks; the rest is dropped.

    Raises ``ValueError`` if that is not enough for a step.
    """
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    # On GPUs, add num_workers=4 and pin_memory=True.
    loader = DataLoader(data, MICRO_BATCH, sampler=sampler, drop_last=True)
    if not 0 < MICRO_BATCHES <= len(loader):
        raise ValueError(f"a rank has {len(loader)} micro-batches, but a step needs {MICRO_BATCHES}")
    return loader


def train_step(
    ddp: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[tuple[torch.Tensor, torch.Tensor]],
) -> torch.Tensor:
    """Make one step on the next ``MICRO_BATCHES`` of ``batches``. Collective.

    Returns the mean loss of this rank's samples. It stays on the device: ``item()`` would wait for the GPU.
    """
    device = next(ddp.parameters()).device
    loss_of_step = torch.zeros((), device=device)
    optimizer.zero_grad()
    for number in range(MICRO_BATCHES):
        x, y = next(batches)
        is_last = number == MICRO_BATCHES - 1
        with nullcontext() if is_last else ddp.no_sync():  # around forward *and* backward
            loss = F.cross_entropy(ddp(x.to(device)), y.to(device)) / MICRO_BATCHES
            loss.backward()  # adds to p.grad; the last one averages over the ranks
        loss_of_step += loss.detach()
    optimizer.step()
    return loss_of_step


def train_epoch(
    ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, loader: DataLoader, epoch: int
) -> torch.Tensor:
    """Train on this rank's part of one epoch; return its mean loss. Collective."""
    loader.sampler.set_epoch(epoch)  # or every epoch has the same order
    batches = iter(loader)
    steps = len(loader) // MICRO_BATCHES  # micro-batches that fill no step are left out
    loss_sum = torch.zeros((), device=next(ddp.parameters()).device)
    for _ in range(steps):
        loss_sum += train_step(ddp, optimizer, batches)
    return loss_sum / steps


@torch.no_grad()
def evaluate(model: nn.Module, data: Dataset) -> tuple[int, int]:
    """Count (classified right, seen) over all ranks. Collective: call it on all of them.

    Each sample is on exactly one rank; a ``DistributedSampler`` would pad, and count some of them twice.
    Pass it ``ddp.module``: DDP's forward may send buffers, which a rank without samples would not join.
    """
    device = next(model.parameters()).device
    for buffer in model.buffers():  # DDP makes batch norm's averages equal before a forward, not after it
        dist.broadcast(buffer, src=0)
    mine = Subset(data, range(dist.get_rank(), len(data), dist.get_world_size()))
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    was_training = model.training
    model.eval()
    for x, y in DataLoader(mine, batch_size=100):
        counts[0] += (model(x.to(device)).argmax(1) == y.to(device)).sum()
        counts[1] += len(y)
    model.train(was_training)
    dist.all_reduce(counts)
    right, seen = counts.tolist()
    return right, seen


def save(ddp: DistributedDataParallel, path: Path) -> None:
    """Write the model, without DDP's prefix `module.`, on rank 0. Collective.

    Then every rank that sees this file system may read it.
    """
    if dist.get_rank() == 0:
        torch.save(ddp.module.state_dict(), path)
    dist.barrier()


def main() -> None:
    device = setup()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # one model on all ranks: DDP would make it rank 0's in any case, FSDP would not
    ddp = wrap(build().to(device), device)
    torch.manual_seed(1 + rank)  # dropout and augmentation differ between ranks
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.003)
    loader = make_loader(points(1000, seed=0))
    test_set = points(501, seed=1)
    for epoch in range(EPOCHS):
        loss = train_epoch(ddp, optimizer, loader, epoch)
        dist.all_reduce(loss)  # the sum of the ranks' losses
        right, seen = evaluate(ddp.module, test_set)
        if rank == 0 and epoch % 3 == 2:
            print(f"epoch {epoch}: loss {loss.item() / world_size:.3f}, {right} of {seen} points right")
    right, seen = evaluate(ddp.module, test_set)
    assert right > 0.9 * seen, f"after {EPOCHS} epochs only {right} of {seen} points are right"
    save(ddp, MODEL)
    if rank == 0:
        print(f"saved as {MODEL.name}")
    dist.barrier()  # nobody leaves while another rank still communicates
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
