"""Exercise 10: a training script with six faults. Five are silent; with one of them the ranks wait.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_10/exercise.py
"""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler, Subset, TensorDataset

BATCH = 25  # images per step, of all ranks together; their shares may differ by one image
LEARNING_RATE = 0.1
SEED = 5


def order_of(images: int, epoch: int) -> list[int]:
    """All indices, in the order of this epoch. It is the same on all ranks."""
    generator = torch.Generator().manual_seed(1000 * SEED + epoch)
    return torch.randperm(images, generator=generator).tolist()


class RankBatches(Sampler[list]):
    """This rank's part of each batch of ``epoch``; what is left at its end is less than a batch."""

    def __init__(self, images: int) -> None:
        self.images = images
        self.epoch = 0

    def __len__(self) -> int:
        return self.images // BATCH

    def __iter__(self) -> Iterator[list]:
        order = order_of(self.images, self.epoch)
        for step in range(len(self)):
            batch = order[step * BATCH : (step + 1) * BATCH]
            yield batch[dist.get_rank() :: dist.get_world_size()]


def train(ddp: nn.Module, train_set: Dataset, epochs: int, device: torch.device) -> None:
    """Train as one process would: each step follows the mean loss of BATCH images."""
    batches = RankBatches(len(train_set))
    loader = DataLoader(train_set, batch_sampler=batches)
    optimizer = torch.optim.SGD(ddp.parameters(), LEARNING_RATE, momentum=0.9)
    ddp.train()
    for epoch in range(epochs):
        # solution: begin
        batches.epoch = epoch
        # solution: found
        # solution: end
        for images, labels in loader:
            scores = ddp(images.to(device))
            # solution: begin
            loss = F.cross_entropy(scores, labels.to(device), reduction="sum")
            (loss * (dist.get_world_size() / BATCH)).backward()  # DDP divides by the number of ranks
            # solution: found
            # loss = F.cross_entropy(scores, labels.to(device))
            # loss.backward()
            # solution: end
            optimizer.step()
            optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1} is done")


@torch.inference_mode()
def evaluate(model: nn.Module, test_set: Dataset, device: torch.device) -> float:
    """Return on every rank the share of the whole test set that is recognised; each image counts once."""
    rank = dist.get_rank()
    size = dist.get_world_size()
    loader = DataLoader(Subset(test_set, range(rank, len(test_set), size)), batch_size=16)
    model.eval()
    # solution: begin
    counts = torch.zeros(2, dtype=torch.int64, device=device)  # recognised, seen
    for images, labels in loader:
        right = model(images.to(device)).argmax(1) == labels.to(device)
        counts[0] += right.sum()
        counts[1] += len(labels)
    dist.all_reduce(counts)
    recognised, seen = counts.tolist()
    return recognised / seen
    # solution: found
    # shares = []
    # for images, labels in loader:
    #     right = model(images.to(device)).argmax(1) == labels.to(device)
    #     shares.append(right.double().mean())
    # share = torch.stack(shares).mean()
    # dist.all_reduce(share)
    # return share.item() / size
    # solution: end


def fit(model: nn.Module, train_set: Dataset, test_set: Dataset, epochs: int, path: Path) -> float:
    """Train and test; rank 0 saves the model's ``state_dict`` to ``path``; return the accuracy on every rank.

    Whoever loads the file has the model alone, without DDP.
    """
    # solution: begin
    # solution: found
    # raise NotImplementedError  # your turn: remove this line, and mend the script
    # solution: end
    device = next(model.parameters()).device
    ddp = DistributedDataParallel(model)
    train(ddp, train_set, epochs, device)
    # solution: begin
    accuracy = evaluate(model, test_set, device)
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
    # solution: found
    # accuracy = 0.0
    # if dist.get_rank() == 0:
    #     accuracy = evaluate(model, test_set, device)
    # torch.save(ddp.state_dict(), path)
    # solution: end
    return accuracy


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))  # a hang ends after it
    images, labels = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
    train_set = Subset(digits, range(1437))
    test_set = Subset(digits, range(1437, len(digits)))
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    accuracy = fit(model, train_set, test_set, epochs=10, path=Path("digits.pt"))
    if dist.get_rank() == 0:
        print(f"{accuracy:.1%} of {len(test_set)} images recognised")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
