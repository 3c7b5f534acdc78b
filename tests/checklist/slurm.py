"""Contrastive pretraining under Slurm: a helper that reads its variables, features gathered from all ranks."""

import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from encoder import Encoder
from pairs import Pairs
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

TIME_LIMIT = 11.5 * 3600


def slurm_setup():
    rank = int(os.environ["SLURM_PROCID"])
    local_rank = int(os.environ["SLURM_LOCALID"])
    world = int(os.environ["SLURM_NTASKS"])
    os.environ.setdefault("MASTER_PORT", "29500")
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl", rank=rank, world_size=world)
    return rank, local_rank, world


def gathered(features, world):
    others = [torch.zeros_like(features) for _ in range(world)]
    dist.all_gather(others, features)
    others[dist.get_rank()] = features
    return torch.cat(others)


def contrastive(images, texts, world):
    images, texts = gathered(F.normalize(images), world), gathered(F.normalize(texts), world)
    scores = images @ texts.T / 0.07
    labels = torch.arange(len(scores), device=scores.device)
    return (F.cross_entropy(scores, labels) + F.cross_entropy(scores.T, labels)) / 2


def out_of_time(started, device):
    spent = torch.tensor(time.time() - started, device=device)
    dist.all_reduce(spent, op=dist.ReduceOp.MAX)
    return spent.item() > TIME_LIMIT


def main():
    started = time.time()
    rank, local_rank, world = slurm_setup()
    device = torch.device("cuda", local_rank)
    dataset = Pairs("/data/pairs")
    sampler = DistributedSampler(dataset, num_replicas=world, rank=rank, drop_last=True)
    loader = DataLoader(dataset, batch_size=256, sampler=sampler, num_workers=8)
    model = Encoder().to(device)
    model = DistributedDataParallel(model, device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    start = 0
    if os.path.exists("last.pt"):
        last = torch.load("last.pt", map_location="cpu")
        model.module.load_state_dict(last["model"])
        optimizer.load_state_dict(last["optimizer"])
        start = last["epoch"] + 1
    for epoch in range(start, 32):
        sampler.set_epoch(epoch)
        for images, texts in loader:
            optimizer.zero_grad()
            one, other = model(images.to(device), texts.to(device))
            loss = contrastive(one, other, world)
            loss.backward()
            optimizer.step()
        if rank == 0:
            state = {"epoch": epoch, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, "last.pt.part")
            os.replace("last.pt.part", "last.pt")
            print(f"epoch {epoch} of 32")
        if out_of_time(started, device):
            break
    dist.destroy_process_group()


main()
