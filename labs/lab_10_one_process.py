"""Train an image classifier in one process: the script that lesson 10 makes distributed.

Run it:      python labs/lab_10_one_process.py --epochs 2
Written by:  notebooks/10_training_template.ipynb (edit it there)
"""

import argparse
import json
import math
import sys

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset


def digits(device: torch.device) -> tuple[TensorDataset, TensorDataset]:
    """1,437 images of 8 x 8 to train on and 360 to test with."""
    pixels, labels = load_digits(return_X_y=True)
    x = torch.tensor(pixels / 16, device=device).reshape(-1, 1, 8, 8)  # float64
    y = torch.tensor(labels, device=device)
    return TensorDataset(x[:1437], y[:1437]), TensorDataset(x[1437:], y[1437:])


def build() -> nn.Module:
    """Group norm, not batch norm: it does not mix the images of a batch."""
    torch.manual_seed(0)
    first = [nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*first, *second, nn.Linear(32 * 4 * 4, 10)).double()


def order_of(images: int, epoch: int) -> list[int]:
    generator = torch.Generator().manual_seed(epoch)
    return torch.randperm(images, generator=generator).tolist()


def train_epoch(model, optimizer, images: TensorDataset, epoch: int, batch_size: int) -> float:
    """Return the mean loss. What is left at the end of an epoch is less than a batch and is left out."""
    order = order_of(len(images), epoch)
    steps = len(images) // batch_size
    loss_sum = torch.zeros((), dtype=torch.float64, device=images.tensors[0].device)
    for step in range(steps):
        batch = order[step * batch_size : (step + 1) * batch_size]
        x, y = images[batch]
        loss = F.cross_entropy(model(x), y, reduction="sum")
        optimizer.zero_grad()
        (loss / batch_size).backward()
        optimizer.step()
        loss_sum += loss.detach()
    return loss_sum.item() / (steps * batch_size)


@torch.inference_mode()
def evaluate(model: nn.Module, images: TensorDataset) -> tuple[float, int]:
    """Return (share recognised, images seen)."""
    x, y = images[:]
    recognised = (model(x).argmax(1) == y).sum()
    counts = torch.stack([recognised, torch.tensor(len(y), device=y.device)])
    recognised, seen = counts.tolist()
    return recognised / seen, seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=48, help="images per step")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set, test_set = digits(device)
    model = build().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(options.epochs):
        loss = train_epoch(model, optimizer, train_set, epoch, options.batch_size)
        if not math.isfinite(loss):
            sys.exit("the loss is not finite; try a lower learning rate")
        share, seen = evaluate(model, test_set)
        line = {"epoch": epoch + 1, "loss": round(loss, 6), "accuracy": round(share, 4), "images": seen}
        print(json.dumps(line))


if __name__ == "__main__":
    main()
