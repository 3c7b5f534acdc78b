"""Distributed synchronous SGD on real images: it learns, and its losses are those of one process.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_06_train.py
Written by:  notebooks/06_data_parallel_by_hand.ipynb
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0, progress
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.data import Images, load_images
from shared.training.models import ConvNet
from shared.training.parity import assert_all_equal, assert_same_on_every_rank, parameters


@dataclass(frozen=True)
class Config:
    epochs: int = 6
    about_batch: int = 48  # images of all ranks together, rounded down to a multiple of the ranks
    learning_rate: float = 0.1
    momentum: float = 0.5
    accuracy: float = 0.95  # what the run must reach on images it has not seen
    tolerance: float = 1e-12  # float64


def average_gradients(model: nn.Module) -> None:
    """Replace each gradient by its mean over the ranks. Collective. From lab_06_by_hand."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def alone(model: nn.Module) -> None:
    """What a single process does between backward and step: nothing."""


def train(model: nn.Module, data: Images, cfg: Config, share: slice, finish: Callable) -> list[list[float]]:
    """Train on ``share`` of each batch; ``finish`` sees the gradients before each step.

    Returns the mean losses of those parts: a list per epoch, a number per step.
    """
    device = next(model.parameters()).device
    x, y = data.train_x.double().to(device), data.train_y.to(device)
    size = cfg.about_batch // dist.get_world_size() * dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), cfg.learning_rate, cfg.momentum)
    epochs = []
    for epoch in progress(range(cfg.epochs), "epochs"):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        losses = []
        for batch in order[: len(x) // size * size].split(size):
            mine = batch[share]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[mine]), y[mine])
            loss.backward()
            finish(model)
            optimizer.step()
            losses.append(loss.item())
        epochs.append(losses)
    return epochs


def reference(model: nn.Module, data: Images, cfg: Config) -> list[list[float]]:
    """One process, whole batches."""
    return train(model, data, cfg, slice(None), alone)


@torch.no_grad()
def recognised(model: nn.Module, data: Images, share: slice, device: torch.device) -> float:
    """The fraction of all test images that is recognised; each is looked at by one rank. Collective."""
    right = model(data.test_x[share].double().to(device)).argmax(1) == data.test_y[share].to(device)
    counts = torch.stack([right.sum(), torch.tensor(len(right), device=device)])
    dist.all_reduce(counts)
    assert counts[1] == len(data.test_x), counts
    return (counts[0] / counts[1]).item()


def main(cfg: Config) -> None:
    with process_group(seed=3, timeout_s=60) as group:
        data, device = load_images("digits"), group.device
        model, same = ConvNet().double().to(device), ConvNet().double().to(device)
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, src=0)
        same.load_state_dict(model.state_dict())

        share = slice(group.rank, None, group.world_size)
        losses = train(model, data, cfg, share, average_gradients)
        assert_same_on_every_rank("after training", parameters(model))
        everyone = torch.tensor(losses, dtype=torch.float64, device=device)  # one mean per step and rank
        dist.all_reduce(everyone)
        everyone /= group.world_size

        whole = []
        if group.rank == 0:  # once is enough; the others wait in the next collective
            whole = reference(same, data, cfg)
            far = (everyone.cpu() - torch.tensor(whole, dtype=torch.float64)).abs().max().item()
            if far > cfg.tolerance:
                raise CourseError(f"the losses of {group.world_size} ranks and of one differ by {far:.0e}")
            assert_all_equal("after training", parameters(model), parameters(same), cfg.tolerance)
        for epoch in (0, 1, 3, cfg.epochs - 1):
            print_on_rank_0(f"epoch {epoch}: mean loss over all ranks {everyone[epoch].mean():.4f}")
        steps = everyone.numel()
        print_on_rank_0(f"after {steps} steps all ranks hold the parameters of one process")

        accuracy = recognised(model, data, share, device)
        if accuracy < cfg.accuracy:
            raise CourseError(f"{accuracy:.1%} recognised, expected {cfg.accuracy:.0%}")
        print_on_rank_0(f"{len(data.test_x)} images never seen in training: {accuracy:.1%} recognised")
        record_results("lab_06_train", {"mine": losses, "everyone": everyone.tolist(), "alone": whole})


if __name__ == "__main__":
    run(main, Config())
