"""Detection: results of all ranks gathered as objects, an averaged dictionary of losses, a helper module's names."""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from coco import CocoEvaluator, build_dataset, build_detector, collate
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler


def init_distributed_mode(args):
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        args.rank = int(os.environ["RANK"])
        args.world_size = int(os.environ["WORLD_SIZE"])
        args.gpu = int(os.environ["LOCAL_RANK"])
    else:
        print("not distributed")
        args.distributed = False
        return
    args.distributed = True
    torch.cuda.set_device(args.gpu)
    dist.init_process_group(backend="nccl", world_size=args.world_size, rank=args.rank)
    dist.barrier()


def is_dist_avail_and_initialized():
    return dist.is_available() and dist.is_initialized()


def get_world_size():
    return dist.get_world_size() if is_dist_avail_and_initialized() else 1


def is_main_process():
    return not is_dist_avail_and_initialized() or dist.get_rank() == 0


def save_on_master(*args, **kwargs):
    if is_main_process():
        torch.save(*args, **kwargs)


def all_gather(data):
    if get_world_size() == 1:
        return [data]
    found = [None] * get_world_size()
    dist.all_gather_object(found, data)
    return found


def reduce_dict(losses):
    world_size = get_world_size()
    if world_size < 2:
        return losses
    with torch.no_grad():
        names = sorted(losses)
        values = torch.stack([losses[name] for name in names])
        dist.all_reduce(values)
        values /= world_size
    return dict(zip(names, values))


def train_one_epoch(model, loader, optimizer, device):
    model.train()
    for images, targets in loader:
        losses = model(images.to(device), targets)
        loss = sum(losses.values())
        mean = sum(reduce_dict(losses).values())
        if not torch.isfinite(mean):
            print(f"the loss is {mean.item()}")
            sys.exit(1)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    found = {}
    for images, targets in loader:
        found.update(model(images.to(device)))
    evaluator = CocoEvaluator()
    for part in all_gather(found):
        evaluator.add(part)
    return evaluator.summary()


def main(args):
    init_distributed_mode(args)
    device = torch.device("cuda")
    model = build_detector().to(device)
    model_without_ddp = model
    if args.distributed:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[args.gpu])
        model_without_ddp = model.module
    optimizer = torch.optim.AdamW(model_without_ddp.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 200)
    dataset_train, dataset_val = build_dataset("train"), build_dataset("val")
    sampler_train = DistributedSampler(dataset_train)
    sampler_val = DistributedSampler(dataset_val, shuffle=False)
    batches = BatchSampler(sampler_train, args.batch_size, drop_last=True)
    loader_train = DataLoader(dataset_train, batch_sampler=batches, collate_fn=collate)
    loader_val = DataLoader(dataset_val, args.batch_size, sampler=sampler_val, collate_fn=collate)
    for epoch in range(args.epochs):
        if args.distributed:
            sampler_train.set_epoch(epoch)
        train_one_epoch(model, loader_train, optimizer, device)
        scheduler.step()
        save_on_master({"model": model_without_ddp.state_dict(), "epoch": epoch}, f"{args.output}/{epoch}.pth")
        results = evaluate(model, loader_val, device)
        if is_main_process():
            print(results)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", default=2, type=int)
    parser.add_argument("--epochs", default=300, type=int)
    parser.add_argument("--output", default="out")
    main(parser.parse_args())
