"""Self-supervised pretraining with a momentum encoder and a queue; workers seeded by rank."""

import copy
import os
import random

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader
from torchvision import models, transforms
from torchvision.datasets import ImageFolder


@torch.no_grad()
def concat_all_gather(tensor):
    gathered = [torch.ones_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, tensor, async_op=False)
    return torch.cat(gathered, dim=0)


class MoCo(nn.Module):
    def __init__(self, size=65536, width=128):
        super().__init__()
        self.query = models.resnet50(num_classes=width)
        self.key = copy.deepcopy(self.query)
        for parameter in self.key.parameters():
            parameter.requires_grad = False
        self.register_buffer("queue", nn.functional.normalize(torch.randn(width, size), dim=0))

    @torch.no_grad()
    def enqueue(self, keys):
        keys = concat_all_gather(keys)
        self.queue = torch.cat([keys.T, self.queue[:, : -len(keys)]], 1)

    def forward(self, one, other):
        q = nn.functional.normalize(self.query(one), dim=1)
        with torch.no_grad():
            for ours, theirs in zip(self.key.parameters(), self.query.parameters()):
                ours.data = ours.data * 0.999 + theirs.data * 0.001
            k = nn.functional.normalize(self.key(other), dim=1)
        right = (q * k).sum(1, keepdim=True)
        scores = torch.cat([right, q @ self.queue.clone().detach()], 1) / 0.07
        self.enqueue(k)
        return scores, torch.zeros(len(scores), dtype=torch.long, device=scores.device)


def main():
    rank, local_rank, world = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    dist.init_process_group("nccl")
    torch.cuda.set_device(local_rank)
    torch.manual_seed(100 + rank)

    def seed_worker(worker):
        random.seed(100 + 1000 * rank + worker)
        np.random.seed(100 + 1000 * rank + worker)

    augment = transforms.Compose([transforms.RandomResizedCrop(224), transforms.ColorJitter(0.4), transforms.ToTensor()])
    data = ImageFolder("imagenet/train", lambda picture: [augment(picture), augment(picture)])
    sampler = torch.utils.data.distributed.DistributedSampler(data)
    loader = DataLoader(data, 256 // world, sampler=sampler, num_workers=8, worker_init_fn=seed_worker, drop_last=True)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(MoCo()).cuda()
    model = nn.parallel.DistributedDataParallel(model, device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), 0.03, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(200):
        sampler.set_epoch(epoch)
        for (one, other), _ in loader:
            scores, labels = model(one.cuda(), other.cuda())
            loss = criterion(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            torch.save({"epoch": epoch, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, f"moco_{epoch}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
