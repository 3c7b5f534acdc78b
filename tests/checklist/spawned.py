"""Image classification with one process per GPU, started by mp.spawn on one or more machines."""

import argparse
import os
import random
import shutil

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms

parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--epochs", default=90, type=int)
parser.add_argument("--batch-size", default=256, type=int)
parser.add_argument("--world-size", default=1, type=int)
parser.add_argument("--rank", default=0, type=int)
parser.add_argument("--dist-url", default="tcp://127.0.0.1:23456")
parser.add_argument("--seed", default=0, type=int)
parser.add_argument("--resume", default="")


def main():
    args = parser.parse_args()
    gpus = torch.cuda.device_count()
    args.world_size = gpus * args.world_size
    mp.spawn(main_worker, nprocs=gpus, args=(gpus, args))


def seed_worker(worker_id):
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


def main_worker(gpu, gpus, args):
    args.gpu = gpu
    args.rank = args.rank * gpus + gpu
    dist.init_process_group("nccl", init_method=args.dist_url, world_size=args.world_size, rank=args.rank)
    torch.cuda.set_device(args.gpu)
    torch.manual_seed(args.seed + args.rank)
    model = models.resnet50().cuda(args.gpu)
    model = nn.parallel.DistributedDataParallel(model, device_ids=[args.gpu])
    criterion = nn.CrossEntropyLoss().cuda(args.gpu)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30)
    start_epoch = 0
    if args.resume and os.path.isfile(args.resume):
        checkpoint = torch.load(args.resume, map_location=f"cuda:{args.gpu}")
        start_epoch = checkpoint["epoch"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])

    tricks = transforms.Compose([transforms.RandomResizedCrop(224), transforms.ToTensor()])
    train_dataset = datasets.ImageFolder(os.path.join(args.data, "train"), tricks)
    train_sampler = torch.utils.data.distributed.DistributedSampler(train_dataset)
    train_loader = DataLoader(
        train_dataset,
        batch_size=args.batch_size // gpus,
        sampler=train_sampler,
        num_workers=8,
        worker_init_fn=seed_worker,
    )
    for epoch in range(start_epoch, args.epochs):
        train_sampler.set_epoch(epoch)
        train(train_loader, model, criterion, optimizer, epoch, args)
        scheduler.step()
        if args.rank == 0:
            state = {"epoch": epoch + 1, "state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, "checkpoint.pth.tar.part")
            os.replace("checkpoint.pth.tar.part", "checkpoint.pth.tar")
            shutil.copyfile("checkpoint.pth.tar", f"epoch_{epoch}.pth.tar")


def train(train_loader, model, criterion, optimizer, epoch, args):
    model.train()
    for i, (images, target) in enumerate(train_loader):
        images = images.cuda(args.gpu, non_blocking=True)
        target = target.cuda(args.gpu, non_blocking=True)
        output = model(images)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 10 == 0 and args.rank == 0:
            print(f"epoch {epoch}, batch {i}: {loss.item():.3f}")


if __name__ == "__main__":
    main()
