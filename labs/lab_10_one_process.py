"""Train an image classifier in one process: the script that lesson 10 makes distributed.

Run it:      python labs/lab_10_one_process.py
Written by:  notebooks/10_training_template.ipynb
"""

import argparse
import math
import time
from itertools import islice

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

from shared.runtime.errors import InputError
from shared.runtime.options import Options, positive
from shared.runtime.run import run
from shared.training.image_models import image_classifier
from shared.training.image_sets import ImageSets, load_image_sets

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")


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
    add("--batch-size", type=positive, default=48, help="images per step (48)")
    add("--lr", type=float, default=0.05, help="learning rate of SGD with momentum 0.9 (0.05)")
    add("--seed", type=int, default=0, help="of parameters, order and augmentation (0)")
    add("--workers", type=int, default=0, help="processes that load images (0)")
    flag("--float64", "compute in float64, to compare runs")
    return parser.parse_args(arguments)


def load(args: argparse.Namespace) -> tuple[ImageSets, DataLoader, DataLoader]:
    """Return the data sets, and the loaders to train and to test with."""
    data = load_image_sets(args.dataset, args.side, args.augment)
    if args.batch_size > len(data.train):
        raise InputError(f"--batch-size must be at most {len(data.train)}")
    common = {"batch_size": args.batch_size, "num_workers": args.workers, "pin_memory": ON_GPU}
    sampler = RandomSampler(data.train, generator=torch.Generator())
    generator = torch.Generator().manual_seed(args.seed)  # seeds the workers
    loader = DataLoader(data.train, sampler=sampler, generator=generator, drop_last=True, **common)
    return data, loader, DataLoader(data.test, **common)


def scores_of(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    return model(images.to(DEVICE, torch.get_default_dtype()))


def train_epoch(model, loader, optimizer, args) -> tuple[float, float]:
    """Return the mean loss, and the images per second."""
    model.train()
    loss_sum, clock = 0.0, []
    for images, labels in islice(loader, args.steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(scores_of(model, images), labels.to(DEVICE))
        loss.backward()
        optimizer.step()
        loss_sum += loss.item()
        clock.append(time.perf_counter())
    speed = (len(clock) - 1) * len(labels) / max(clock[-1] - clock[0], 1e-9)  # the first step warms up
    return loss_sum / len(clock), speed


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader) -> tuple[int, int]:
    """Return (recognised, seen)."""
    model.eval()
    right = seen = 0
    for images, labels in loader:
        right += (scores_of(model, images).argmax(1) == labels.to(DEVICE)).sum().item()
        seen += len(labels)
    return right, seen


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    torch.manual_seed(args.seed)
    torch.set_default_dtype(torch.float64 if args.float64 else torch.float32)
    data, loader, test_loader = load(args)
    model = image_classifier(args.model, data.channels, data.classes).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    for epoch in range(1 if args.steps else args.epochs):
        loader.sampler.generator.manual_seed(args.seed + epoch)  # another order in each epoch
        loss, speed = train_epoch(model, loader, optimizer, args)
        if not math.isfinite(loss):
            raise InputError("the loss is no number any more: try a lower --lr")
        right, seen = evaluate(model, test_loader)
        print(f"epoch {epoch + 1}: loss {loss:.3f}, {right / seen:.1%} of {seen} images right")
        if args.steps:
            print(f"images/s: {speed:,.0f}")


if __name__ == "__main__":
    run(main)
