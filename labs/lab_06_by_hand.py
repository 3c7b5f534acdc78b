"""Data parallel training by hand equals a single process after every step, in gradients and parameters.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_06_by_hand.py
Written by:  notebooks/06_data_parallel_by_hand.ipynb
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.run import run
from shared.training.data import load_images
from shared.training.parity import assert_all_equal, assert_same_on_every_rank, gradients, parameters


@dataclass(frozen=True)
class Config:
    seed: int = 7
    epochs: int = 6
    global_batch: int = 840  # images of all ranks together; divides by every world size up to 8
    learning_rate: float = 2.0
    momentum: float = 0.9
    tolerance: float = 1e-12  # float64


class Net(nn.Module):
    """A classifier of digits with a layer that does not learn and a weight that is used twice.

    Input (batch, 1, 8, 8), output (batch, 10) scores.
    """

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Conv2d(1, 4, 3, stride=2, padding=1).requires_grad_(False)
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 64)
        self.second.weight = self.first.weight  # tied
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.frozen(x).flatten(1))
        x = torch.tanh(self.first(x))
        x = torch.tanh(self.second(x))
        return self.head(x)


def broadcast_parameters(model: nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0, in place. Collective."""
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)


def partition_dataset(images: int, epoch: int, global_batch: int, group: Group) -> list[torch.Tensor]:
    """Return this rank's part of each batch of an epoch: indices, one tensor per step.

    Every rank draws the same order of all images, so that the parts fit together without communication.
    What is left over at the end and fills no batch is left out: all ranks make the same number of steps.
    """
    order = torch.randperm(images, generator=torch.Generator().manual_seed(epoch))
    full = images // global_batch * global_batch
    return [batch[group.rank :: group.world_size] for batch in order[:full].split(global_batch)]


def average_gradients(model: nn.Module) -> None:
    """Replace each gradient by its mean over the ranks, one all-reduce per parameter. Collective.

    Parameters that do not learn are skipped, on all ranks alike. The mean is the gradient of the joined
    batch only if each rank's part has the same number of images, and the loss is a mean over them.
    """
    for parameter in model.parameters():
        if parameter.requires_grad:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def reference(cfg: Config, device: torch.device) -> nn.Module:
    """What a single process starts from: the model that rank 0's seed gives."""
    torch.manual_seed(cfg.seed)
    return Net().double().to(device)


def main(cfg: Config) -> None:
    with process_group(timeout_s=20) as group:
        data = load_images("digits")
        x, y = data.train_x.double().to(group.device), data.train_y.to(group.device)
        alone = reference(cfg, group.device)
        torch.manual_seed(cfg.seed + group.rank)  # a different model on each rank, on purpose
        model = Net().double().to(group.device)
        before = sum(p.sum().item() for p in model.parameters())
        broadcast_parameters(model)
        after = sum(p.sum().item() for p in model.parameters())
        print_in_rank_order(f"sum of parameters: {before:8.4f} before the broadcast, {after:8.4f} after")
        assert_all_equal("at the start", parameters(model), parameters(alone), 0.0)

        optimizer, alone_optimizer = (
            torch.optim.SGD(m.parameters(), cfg.learning_rate, cfg.momentum) for m in (model, alone)
        )
        for epoch in range(cfg.epochs):
            for mine in partition_dataset(len(x), epoch, cfg.global_batch, group):
                optimizer.zero_grad()
                F.cross_entropy(model(x[mine]), y[mine]).backward()
                average_gradients(model)
                optimizer.step()

                parts = [torch.empty_like(mine, device=group.device) for _ in range(group.world_size)]
                dist.all_gather(parts, mine.to(group.device))
                joined = torch.cat(parts)
                assert len(joined.unique()) == cfg.global_batch, "an image is in two parts"
                alone_optimizer.zero_grad()
                loss = F.cross_entropy(alone(x[joined]), y[joined])
                loss.backward()
                alone_optimizer.step()

                gradient = assert_all_equal("gradient", gradients(model), gradients(alone), cfg.tolerance)
                value = assert_all_equal("parameter", parameters(model), parameters(alone), cfg.tolerance)
                assert_same_on_every_rank(f"epoch {epoch}", parameters(model))
                print_on_rank_0(
                    f"step {epoch}: loss of one process {loss.item():.4f}, "
                    f"largest difference in gradients {gradient:.0e}, in parameters {value:.0e}"
                )


if __name__ == "__main__":
    run(main, Config())
