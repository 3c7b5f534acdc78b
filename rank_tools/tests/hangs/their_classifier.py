"""A script as it stands in many repositories: spawn, argparse, validation on the first process only."""

import argparse

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", default=3, type=int)
parser.add_argument("-b", "--batch-size", default=8, type=int)
parser.add_argument("--dist-url", default="tcp://127.0.0.1:23456", type=str)


def validate(loader, model):
    model.eval()
    correct = 0
    with torch.no_grad():
        for images, target in loader:
            correct += (model(images).argmax(1) == target).sum().item()
    return correct / len(loader.dataset)


def main_worker(rank, world_size, args):
    dist.init_process_group("gloo", init_method=args.dist_url, rank=rank, world_size=world_size)
    model = DDP(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    dataset = TensorDataset(torch.randn(64, 8), torch.randint(2, (64,)))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, num_workers=1)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for images, target in loader:
            loss = nn.functional.cross_entropy(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            acc = validate(DataLoader(dataset, 32), model)
            print(f"epoch {epoch} acc {acc:.3f}")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    args = parser.parse_args()
    mp.spawn(main_worker, nprocs=2, args=(2, args))
