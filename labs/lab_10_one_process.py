"""Train an image classifier in one process: the script that lesson 10 makes distributed.

Run it:      python labs/lab_10_one_process.py --epochs 2
Written by:  notebooks/10_training_template.ipynb
"""

import argparse
import gzip
import json
import math
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset
from tqdm import tqdm

# --- Options ---


class Refused(Exception):
    """Something that the one who started the run can mend; its text says how."""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--epochs", type=int, default=6)
    add("--batch-size", type=int, default=48, help="images per step")
    add("--lr", type=float, default=0.1, help="learning rate of SGD with momentum 0.9")
    add("--weight-decay", type=float, default=1e-4)
    add("--float64", action="store_true", help="compute in float64, to compare runs")
    add("--seed", type=int, default=0)
    return parser.parse_args(arguments)


# --- Seeds: one rule for everything random ---


def seed_of(*what: object) -> int:
    """A number that depends on all of ``what`` and on nothing else.

    The order of images is seeded by (seed, epoch).
    """
    return random.Random(repr(what)).getrandbits(63)


# --- Data ---


@dataclass(frozen=True)
class Data:
    """Images to train on and to test with, as float32 (channels, side, side), and how many classes."""

    train: Dataset
    test: Dataset
    channels: int
    side: int
    classes: int


def digits() -> Data:
    """1,797 images of 8 x 8 that scikit-learn brings along; 1,437 to train on and 360 to test with."""
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise Refused("these images come with scikit-learn: pip install scikit-learn")
    file = Path(spec.origin).parent / "datasets/data/digits.csv.gz"
    with gzip.open(file, "rt") as lines:
        rows = torch.tensor([[float(value) for value in line.split(",")] for line in lines])
    images = rows[:, :64].reshape(-1, 1, 8, 8) / 16
    labels = rows[:, 64].long()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    train = TensorDataset(images[order[:1437]], labels[order[:1437]])
    test = TensorDataset(images[order[1437:]], labels[order[1437:]])
    return Data(train, test, channels=1, side=8, classes=10)


class Batches(Sampler[list]):
    """The batches of an epoch, in another order in each. What is left at its end is left out."""

    def __init__(self, images: int, options: argparse.Namespace) -> None:
        if not 1 <= options.batch_size <= images:
            raise Refused(f"--batch-size must be from 1 to {images} (images)")
        self.images = images
        self.options = options
        self.steps = images // options.batch_size
        self.epoch = 0

    def start_at(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list]:
        generator = torch.Generator().manual_seed(seed_of(self.options.seed, "order", self.epoch))
        order = torch.randperm(self.images, generator=generator).tolist()
        for step in range(self.steps):
            begin = step * self.options.batch_size
            yield order[begin : begin + self.options.batch_size]


def loaders(data: Data, options: argparse.Namespace) -> tuple[DataLoader, DataLoader]:
    """Batches to train on, and the images to test with."""
    batches = Batches(len(data.train), options)
    to_train = DataLoader(data.train, batch_sampler=batches)
    return to_train, DataLoader(data.test, batch_size=256)


# --- Model ---


class ConvNet(nn.Module):
    """(batch, channels, side, side) to (batch, classes). Group norm does not mix the images of a batch."""

    def __init__(self, channels: int, side: int, classes: int, width: int = 32) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1)
        self.norm1 = nn.GroupNorm(4, width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.norm2 = nn.GroupNorm(4, 2 * width)
        self.head = nn.Linear(2 * width * (side // 2) ** 2, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        x = F.max_pool2d(x, 2)
        x = torch.relu(self.norm2(self.conv2(x)))
        return self.head(x.flatten(1))


def build(data: Data, options: argparse.Namespace, device: torch.device) -> nn.Module:
    torch.manual_seed(options.seed)
    model = ConvNet(data.channels, data.side, data.classes)
    dtype = torch.float64 if options.float64 else torch.float32
    return model.to(device, dtype)


# --- One step ---


class Trainer:
    """A model, its optimizer, and how far they are."""

    def __init__(self, data: Data, options: argparse.Namespace) -> None:
        self.options = options
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = build(data, options, self.device)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), options.lr, momentum=0.9, weight_decay=options.weight_decay
        )
        self.step = 0  # optimizer steps that are done

    def train_step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """One optimizer step on a batch; returns the sum of its losses."""
        images = images.to(self.device)
        labels = labels.to(self.device)
        if self.options.float64:
            images = images.double()
        loss_sum = F.cross_entropy(self.model(images), labels, reduction="sum")
        (loss_sum / self.options.batch_size).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return loss_sum.detach()


@torch.inference_mode()
def evaluate(trainer: Trainer, loader: DataLoader) -> tuple[float, int]:
    """Return (share recognised, images seen)."""
    model = trainer.model
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=trainer.device)  # recognised, seen
    for images, labels in loader:
        images = images.to(trainer.device)
        labels = labels.to(trainer.device)
        if trainer.options.float64:
            images = images.double()
        scores = model(images)
        counts[0] += (scores.argmax(1) == labels).sum()
        counts[1] += len(labels)
    model.train()
    recognised, seen = counts.tolist()
    return recognised / seen, seen


# --- The run ---


def train(options: argparse.Namespace) -> None:
    data = digits()
    to_train, to_test = loaders(data, options)
    batches = to_train.batch_sampler
    trainer = Trainer(data, options)
    steps = batches.steps * options.epochs
    bar = tqdm(total=steps, desc="steps", leave=False)
    while trainer.step < steps:
        epoch = trainer.step // batches.steps
        batches.start_at(epoch)
        loss_sum = torch.zeros((), dtype=torch.float64, device=trainer.device)
        for images, labels in to_train:
            loss_sum += trainer.train_step(images, labels)
            bar.update()
        loss = loss_sum.item() / (batches.steps * options.batch_size)
        if not math.isfinite(loss):
            raise Refused(f"epoch {epoch + 1}: the loss is not finite; try a lower --lr")
        share, seen = evaluate(trainer, to_test)
        line = {"epoch": epoch + 1, "loss": round(loss, 6), "accuracy": round(share, 4), "images": seen}
        bar.write(json.dumps(line), file=sys.stdout)
    bar.close()


def main(arguments: list[str] | None = None) -> int:
    try:
        train(parse(arguments))
    except Refused as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
