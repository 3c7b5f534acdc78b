"""Ranks with unequal shares of a batch: the mean of means is wrong, the weighted mean is right.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_06_uneven.py
Written by:  notebooks/06_data_parallel_by_hand.ipynb
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from lab_06_by_hand import average_gradients, broadcast_parameters
from torch import nn

from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.data import load_images
from shared.training.models import ConvNet


@dataclass(frozen=True)
class Config:
    batch: int = 120  # images of all ranks together
    ratios: tuple[int, ...] = (1, 2, 4, 8, 16)  # rank 0 has so many times the images of another rank
    tolerance: float = 1e-12  # float64, relative to the gradient of one process
    wrong_by: float = 0.01  # the mean of means must be off by more, from a ratio of 2 on


def shares(images: int, ratio: int, world_size: int) -> list[int]:
    """How many images each rank gets: rank 0 about ``ratio`` times as many as each other rank."""
    if ratio == 1:
        return [images // world_size] * world_size
    other = round(images / (ratio + world_size - 1))
    return [images - other * (world_size - 1)] + [other] * (world_size - 1)


def as_even_as_possible(images: int, world_size: int) -> list[int]:
    """Shares that differ by one image at most."""
    return [len(range(rank, images, world_size)) for rank in range(world_size)]


def cases(cfg: Config, images: int, world_size: int) -> dict[str, list[int]]:
    """{case: images on each rank}."""
    found = {}
    for ratio in cfg.ratios:
        found[f"{ratio} : 1"] = shares(cfg.batch, ratio, world_size)
    found["all images"] = as_even_as_possible(images, world_size)
    found["none on the last"] = [cfg.batch // (world_size - 1)] * (world_size - 1) + [0]
    return found


def mean_of_means(model: nn.Module, x: torch.Tensor, y: torch.Tensor, total: int) -> None:
    """Fill the gradients with the mean of the ranks' means: what lab_06_by_hand.py does. Collective."""
    F.cross_entropy(model(x), y).backward()
    average_gradients(model)


def weighted_mean(model: nn.Module, x: torch.Tensor, y: torch.Tensor, total: int) -> None:
    """Fill the gradients with those of the mean loss over all ranks' ``total`` images. Collective.

    That loss is the sum over all images, divided by their number. So each image weighs 1 / total, whatever
    rank it is on, and the ranks' gradients are added. A rank without images adds zero.
    """
    loss = F.cross_entropy(model(x), y, reduction="sum") / total
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def flat_gradient(model: nn.Module) -> torch.Tensor:
    """All gradients in one vector."""
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def reference(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The gradient that one process computes on the joined batch."""
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    return flat_gradient(model)


def relative_error(found: torch.Tensor, truth: torch.Tensor) -> float:
    return ((found - truth).norm() / truth.norm()).item()


def try_case(case: str, counts: list[int], model: nn.Module, cfg: Config, group: Group) -> dict:
    """Compare both ways with one process, report, and return what the notebook draws. Collective.

    Raises:
        CourseError: the weighted mean is not right, or the mean of means is not as wrong as it should be.
    """
    data = load_images("digits")
    x, y = data.train_x.double().to(group.device), data.train_y.to(group.device)
    total = sum(counts)
    begin = sum(counts[: group.rank])
    mine = slice(begin, begin + counts[group.rank])
    truth = reference(model, x[:total], y[:total])

    def gradient_by(way: Callable) -> torch.Tensor:
        model.zero_grad()
        way(model, x[mine], y[mine], total)
        return flat_gradient(model)

    by_means = gradient_by(mean_of_means)
    off_by_means = relative_error(by_means, truth)
    off_by_weights = relative_error(gradient_by(weighted_mean), truth)
    if not off_by_weights <= cfg.tolerance:
        raise CourseError(f"{case}: the weighted mean is off by {off_by_weights:.1e}")
    if len(set(counts)) == 1:
        as_expected = off_by_means <= cfg.tolerance
    elif 0 in counts:  # N - 1 equal shares, then an average over N ranks
        fraction = (group.world_size - 1) / group.world_size
        as_expected = relative_error(by_means, fraction * truth) <= cfg.tolerance
    elif max(counts) >= 2 * min(counts):
        as_expected = off_by_means > cfg.wrong_by
    else:
        as_expected = off_by_means > 1e-6
    if not as_expected:
        raise CourseError(f"{case}: the mean of means is off by {off_by_means:.1e}, which is not expected")
    print_on_rank_0(
        f"{case:17} {' + '.join(map(str, counts)):>26} images: mean of means off by "
        f"{off_by_means:7.2%}, weighted mean by {off_by_weights:.0e}"
    )
    return {"counts": counts, "mean_of_means": off_by_means, "weighted_mean": off_by_weights}


def main(cfg: Config) -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        images = len(load_images("digits").train_x)
        model = ConvNet().double().to(group.device)
        broadcast_parameters(model)
        rows = {}
        for case, counts in cases(cfg, images, group.world_size).items():
            rows[case] = try_case(case, counts, model, cfg, group)
        record_results("lab_06_uneven", {"rows": rows})


if __name__ == "__main__":
    run(main, Config())
