# rejected: [rank 0] Exercise 10 mend: wrong: the checklist is content, but fit returns
"""The checklist is content: it sees an all_reduce. But the means count alike, of many images or few."""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset

from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import results_folder
from shared.runtime.run import run
from shared.training.data import load_images

GLOBAL_BATCH, SEED = 24, 5


def train(ddp: nn.Module, train_set: Dataset, epochs: int, device: torch.device) -> None:
    """Train as one process would on batches of GLOBAL_BATCH images, in another order in each epoch."""
    sampler = DistributedSampler(train_set, seed=SEED)
    loader = DataLoader(train_set, GLOBAL_BATCH // dist.get_world_size(), sampler=sampler)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1, momentum=0.9)
    ddp.train()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(ddp(x.to(device)), y.to(device)).backward()
            optimizer.step()
        print_on_rank_0(f"epoch {epoch + 1} is done")


@torch.no_grad()
def evaluate(model: nn.Module, test_set: Dataset, device: torch.device) -> float:
    """Return on every rank the share of the whole test set that is recognised; each image counts once."""
    model.eval()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    loader = DataLoader(Subset(test_set, range(rank, len(test_set), world_size)), batch_size=16)
    shares = []
    for x, y in loader:
        right = model(x.to(device)).argmax(1) == y.to(device)
        shares.append(right.double().mean())
    share = torch.stack(shares).mean()
    dist.all_reduce(share)
    return share.item() / world_size


def fit(model: nn.Module, train_set: Dataset, test_set: Dataset, epochs: int, path: Path) -> float:
    """Train, save the model to ``path``, and return the accuracy on every rank."""
    device = next(model.parameters()).device
    ddp = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    train(ddp, train_set, epochs, device)
    accuracy = evaluate(model, test_set, device)
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
    return accuracy


def main() -> None:
    with process_group(seed=SEED) as group:
        data = load_images("digits")
        layers = nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)
        train_set, test_set = TensorDataset(*data[:2]), TensorDataset(*data[2:])
        path = results_folder() / "exercise_10_mend.pt"
        accuracy = fit(nn.Sequential(*layers).to(group.device), train_set, test_set, 10, path)
        print_on_rank_0(f"{accuracy:.1%} of {len(test_set)} images recognised")


if __name__ == "__main__":
    run(main)
