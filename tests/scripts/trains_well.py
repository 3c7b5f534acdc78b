"""A training script without a fault that lesson 10 looks for. trains_well.faults plants them, one by one."""

import os
import random
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

EPOCHS, SEED, LATEST = 2, 0, Path(os.environ.get("LATEST", "latest.pt"))


def train(model, loader, optimizer, scaler, device):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.float16):
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    counts = torch.zeros(2, device=device)
    for x, y in loader:
        right = model(x.to(device)).argmax(1) == y.to(device)
        counts += torch.stack([right.sum(), torch.tensor(len(y), device=device)])
    dist.all_reduce(counts)
    return counts[0].item() / counts[1].item()


def save(model, optimizer, scaler):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    state["scaler"] = scaler.state_dict()
    beside = LATEST.with_suffix(".part")
    torch.save(state, beside)
    beside.replace(LATEST)


def main():
    on_gpu = torch.cuda.is_available()
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED + rank)
    np.random.seed(SEED + rank)
    random.seed(SEED + rank)

    train_set = TensorDataset(torch.rand(96, 8), torch.arange(96) % 3)
    sampler = DistributedSampler(train_set, seed=SEED)
    generator = torch.Generator()
    generator.manual_seed(SEED + rank)
    loader = DataLoader(train_set, batch_size=16, num_workers=1, sampler=sampler, generator=generator)
    test_set = TensorDataset(torch.rand(31, 8), torch.arange(31) % 3)
    mine = range(rank, len(test_set), world_size)
    test_loader = DataLoader(Subset(test_set, mine), batch_size=16)

    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 3))
    model = model.to(device)
    if on_gpu:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    ddp = DDP(model, device_ids=[local_rank] if on_gpu else None)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    scaler = GradScaler(device.type)
    if LATEST.is_file():
        state = torch.load(LATEST, map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scaler.load_state_dict(state["scaler"])

    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        train(ddp, loader, optimizer, scaler, device)
        accuracy = evaluate(model, test_loader, device)
        if rank == 0:
            print(f"epoch {epoch}: {accuracy:.1%}")
            save(model, optimizer, scaler)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
