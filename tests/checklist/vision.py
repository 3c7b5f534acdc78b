"""Images by DDP: mixed precision, an unpadded evaluation, a checkpoint that is resumed."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, models, transforms


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--resume", default="")
    return parser.parse_args()


def load_data(args, rank, local_rank, world_size):
    augment = transforms.Compose([transforms.RandomCrop(32, 4), transforms.RandomHorizontalFlip(), transforms.ToTensor()])
    if local_rank == 0:
        datasets.CIFAR10(args.data, download=True)
    dist.barrier()
    train_set = datasets.CIFAR10(args.data, transform=augment)
    test_set = datasets.CIFAR10(args.data, train=False, transform=transforms.ToTensor())
    sampler = DistributedSampler(train_set, num_replicas=world_size, rank=rank, shuffle=True, seed=0)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler, num_workers=4, drop_last=True)
    mine = Subset(test_set, range(rank, len(test_set), world_size))
    return loader, sampler, DataLoader(mine, args.batch_size)


def train_one_epoch(model, loader, optimizer, scaler, device):
    model.train()
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    correct = torch.zeros((), device=device)
    total = torch.zeros((), device=device)
    for images, labels in loader:
        scores = model(images.to(device))
        correct += (scores.argmax(1) == labels.to(device)).sum()
        total += len(labels)
    dist.all_reduce(correct)
    dist.all_reduce(total)
    return (correct / total).item()


def main():
    args = parse()
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(1 + rank)
    loader, sampler, test_loader = load_data(args, rank, local_rank, world_size)

    model = models.resnet18(num_classes=10).to(device)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    ddp = DDP(model, device_ids=[local_rank])
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max")
    scaler = torch.amp.GradScaler("cuda")
    first_epoch, best = 0, 0.0
    if args.resume:
        state = torch.load(args.resume, map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scaler.load_state_dict(state["scaler"])
        first_epoch = state["epoch"] + 1

    for epoch in range(first_epoch, args.epochs):
        sampler.set_epoch(epoch)
        train_one_epoch(ddp, loader, optimizer, scaler, device)
        accuracy = evaluate(model, test_loader, device)
        schedule.step(accuracy)
        if rank == 0:
            print(f"epoch {epoch}: {accuracy:.1%}")
            best = max(best, accuracy)
            state = {
                "epoch": epoch,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scaler": scaler.state_dict(),
            }
            torch.save(state, f"checkpoint_{epoch}.pt")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
