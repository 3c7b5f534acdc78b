"""Train an image classifier on any number of ranks: the script to copy.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_10_train.py
Written by:  notebooks/10_training_template.ipynb
"""

import argparse
import math
import time
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

from shared.runtime.errors import InputError
from shared.runtime.group import Group, process_group
from shared.runtime.options import Options, positive
from shared.runtime.report import print_on_rank_0, progress
from shared.runtime.run import run
from shared.training.checkpoint import load_checkpoint, save_atomically
from shared.training.image_models import image_classifier
from shared.training.image_sets import ImageSets, load_image_sets
from shared.training.random_states import gather_random_states, set_random_states
from shared.training.sync_batch_norm import convert_batch_norm


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = Options(description=__doc__.partition("\n")[0])
    add, flag = parser.add_argument, parser.flag
    add("--dataset", default="digits", help="digits, mnist, or a folder: train/CLASS/*.png, test/CLASS/*.png")
    add("--synthetic", dest="dataset", action="store_const", const="synthetic", help="random images instead")
    add("--side", type=positive, default=64, help="height and width of a folder's or synthetic images (64)")
    flag("--augment", "shift the images to train on at random")
    add("--model", choices=["convnet", "resnet18"], default="convnet", help="what to train (convnet)")
    add("--epochs", type=positive, default=6, help="train until so many epochs are done (6)")
    add("--steps", type=positive, help="one epoch of at most so many steps, to measure the speed")
    add("--batch-size", type=positive, default=48, help="images per step, of all ranks together (48)")
    add("--lr", type=float, default=0.05, help="learning rate of SGD with momentum 0.9 (0.05)")
    add("--seed", type=int, default=0, help="of parameters, order and augmentation (0)")
    add("--workers", type=int, default=0, help="processes that load images, per rank (0)")
    flag("--float64", "compute in float64, to compare runs")
    flag("--sync-bn", "batch norm over the batches of all ranks", default=True)
    flag("--amp", "compute in bf16 on a CPU, in fp16 on a GPU")
    add("--checkpoint", type=Path, metavar="FILE", help="save to FILE after each epoch")
    add("--resume", type=Path, metavar="FILE", help="go on from FILE")
    return parser.parse_args(arguments)


def load(args: argparse.Namespace, group: Group) -> tuple[ImageSets, DataLoader, DataLoader]:
    """Return the data sets, and this rank's loaders; each image to test with is on exactly one rank."""
    data = load_image_sets(args.dataset, args.side, args.augment)
    ranks, on_gpu = group.world_size, group.device.type == "cuda"
    if args.batch_size % ranks or args.batch_size > len(data.train):
        raise InputError(f"--batch-size must divide by {ranks} ranks and be at most {len(data.train)}")
    common = {"batch_size": args.batch_size // ranks, "num_workers": args.workers, "pin_memory": on_gpu}
    sampler = DistributedSampler(data.train, seed=args.seed, drop_last=True)
    generator = torch.Generator().manual_seed(args.seed + group.rank)  # seeds this rank's workers
    loader = DataLoader(data.train, sampler=sampler, generator=generator, drop_last=True, **common)
    return data, loader, DataLoader(Subset(data.test, range(group.rank, len(data.test), ranks)), **common)


def scores_of(model: nn.Module, images: torch.Tensor, args: argparse.Namespace, group: Group) -> torch.Tensor:
    half = torch.float16 if group.device.type == "cuda" else torch.bfloat16
    with torch.autocast(group.device.type, half, enabled=args.amp):
        return model(images.to(group.device, torch.get_default_dtype()))


def train_epoch(ddp, loader, optimizer, scaler, args, group: Group) -> tuple[float, float]:
    """Return the mean loss, and the images per second of all ranks."""
    ddp.train()
    loss_sum, clock = 0.0, []
    for images, labels in progress(islice(loader, args.steps), "training"):
        optimizer.zero_grad()
        loss = F.cross_entropy(scores_of(ddp, images, args, group), labels.to(group.device))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        loss_sum += loss.item()
        clock.append(time.perf_counter())
    speed = (len(clock) - 1) * len(labels) / max(clock[-1] - clock[0], 1e-9)  # the first step warms up
    dist.all_reduce(totals := torch.tensor([loss_sum, len(clock), speed], device=group.device))
    return (totals[0] / totals[1]).item(), totals[2].item()


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader, args, group: Group) -> tuple[int, int]:
    """Return (recognised, seen). Takes the model itself, for DDP's forward may communicate."""
    model.eval()
    right = seen = 0
    for images, labels in loader:
        right += (scores_of(model, images, args, group).argmax(1) == labels.to(group.device)).sum().item()
        seen += len(labels)
    dist.all_reduce(counts := torch.tensor([right, seen], device=group.device))  # sums: shares differ
    return tuple(counts.tolist())


def save(path: Path, run_of: str, parts: dict, history: list, generator, group: Group) -> None:
    random = gather_random_states(generator, group)  # collective, so all ranks call it
    if group.rank == 0:
        states = {name: part.state_dict() for name, part in parts.items()}
        save_atomically({**states, "run": run_of, "history": history, "random": random}, path)


def restore(path: Path, run_of: str, parts: dict, generator, group: Group) -> list:
    saved = load_checkpoint(path, group.device)
    if saved["run"] != run_of:
        raise InputError(f"{path.name}: was saved by a run of {saved['run']}, this one is of {run_of}")
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    set_random_states(saved["random"], generator, group)
    print_on_rank_0(f"{path.name}: {len(saved['history'])} epochs are done")
    return saved["history"]


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    with process_group(seed=args.seed, timeout_s=600, largest=4096) as group:
        torch.set_default_dtype(torch.float64 if args.float64 else torch.float32)
        data, loader, test_loader = load(args, group)
        model = image_classifier(args.model, data.channels, data.classes).to(group.device)
        on_gpu = group.device.type == "cuda"
        if args.sync_bn:
            model = (nn.SyncBatchNorm.convert_sync_batchnorm if on_gpu else convert_batch_norm)(model)
        ddp = DistributedDataParallel(model, device_ids=[group.local_rank] if on_gpu else None)
        optimizer = torch.optim.SGD(ddp.parameters(), args.lr, momentum=0.9)
        scaler = GradScaler(group.device.type, enabled=args.amp and on_gpu)
        parts = {"model": model, "optimizer": optimizer, "scaler": scaler}
        run_of, history = f"{args.model} on {args.dataset}, batch {args.batch_size}, seed {args.seed}", []
        if args.resume:
            scores_of(ddp, next(iter(loader))[0], args, group).sum().backward()  # DDP sorts its buckets
            history = restore(args.resume, run_of, parts, loader.generator, group)
        for epoch in range(len(history), 1 if args.steps else args.epochs):
            loader.sampler.set_epoch(epoch)  # another order in each epoch
            loss, speed = train_epoch(ddp, loader, optimizer, scaler, args, group)
            if not math.isfinite(loss):
                raise InputError("the loss is no number any more: try a lower --lr")
            right, seen = evaluate(model, test_loader, args, group)
            history.append({"loss": loss, "right": right, "seen": seen, "images/s": speed})
            print_on_rank_0(f"epoch {epoch + 1}: loss {loss:.3f}, {right / seen:.1%} of {seen} images right")
            if args.steps:
                print_on_rank_0(f"images/s: {speed / group.world_size:,.0f} per process, {speed:,.0f} in all")
            if args.checkpoint:
                save(args.checkpoint, run_of, parts, history, loader.generator, group)


if __name__ == "__main__":
    run(main)
