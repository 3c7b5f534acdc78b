"""A worker with its settings bound by functools.partial, started by mp.spawn on one machine."""

import os
from functools import partial

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.optim as optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset, random_split
from torch.utils.data.distributed import DistributedSampler


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 4))

    def forward(self, x):
        return self.layers(x)


def worker(config, rank):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("nccl", rank=rank, world_size=config["ranks"])
    torch.cuda.set_device(rank)
    data = TensorDataset(torch.load("x.pt"), torch.load("y.pt"))
    train_data, held_back = random_split(data, [0.9, 0.1], generator=torch.Generator().manual_seed(7))
    sampler = DistributedSampler(train_data, num_replicas=config["ranks"], rank=rank)
    loader = DataLoader(train_data, batch_size=32, sampler=sampler)
    model = Net(config["width"]).to(rank)
    model = DistributedDataParallel(model, device_ids=[rank])
    optimizer = optim.Adam(model.parameters(), lr=config["lr"])
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(config["epochs"]):
        sampler.set_epoch(epoch)
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(x.to(rank)), y.to(rank))
            loss.backward()
            optimizer.step()
            total += loss.item()
        mean = torch.tensor(total / len(loader), device=rank)
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        if rank == 0:
            print(epoch, mean.item(), len(held_back))
        if mean.item() < config["goal"]:
            break
    if rank == 0:
        torch.save(model.module.state_dict(), "net.pt")
    dist.barrier()
    model.module.load_state_dict(torch.load("net.pt", map_location=f"cuda:{rank}"))
    dist.destroy_process_group()


if __name__ == "__main__":
    settings = {"ranks": torch.cuda.device_count(), "width": 64, "lr": 1e-3, "epochs": 20, "goal": 0.01}
    mp.spawn(partial(worker, settings), nprocs=settings["ranks"])
