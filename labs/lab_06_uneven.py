"""Ranks with unequal shares of a batch: the mean of means is wrong, the weighted mean is right.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_06_uneven.py
Written by:  notebooks/06_data_parallel_by_hand.ipynb
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
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


def mean_of_means(model: nn.Module, x: torch.Tensor, y: torch.Tensor, total: int) -> torch.Tensor:
    """The gradient of the mean loss of this part (x, y), averaged over the ranks: flat. Collective."""
    flat = gradient(model, F.cross_entropy(model(x), y))
    dist.all_reduce(flat)
    return flat / dist.get_world_size()


def weighted_mean(model: nn.Module, x: torch.Tensor, y: torch.Tensor, total: int) -> torch.Tensor:
    """The gradient of the summed loss of this part (x, y) over ``total`` images, summed over the ranks.

    The mean loss of the joined batch is the sum over all its images, divided by their number. So each
    image weighs 1 / total, whatever rank it is on. A rank without images adds zero. Flat. Collective.
    """
    flat = gradient(model, F.cross_entropy(model(x), y, reduction="sum") / total)
    dist.all_reduce(flat)
    return flat


def gradient(model: nn.Module, loss: torch.Tensor) -> torch.Tensor:
    """The gradients of all parameters in one vector."""
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def reference(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One process, the joined batch."""
    return gradient(model, F.cross_entropy(model(x), y))


def main(cfg: Config) -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        data, n = load_images("digits"), group.world_size
        x, y = data.train_x.double().to(group.device), data.train_y.to(group.device)
        torch.manual_seed(0)
        model = ConvNet().double().to(group.device)
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, src=0)

        rows = {}
        for ratio in cfg.ratios:
            rows[f"{ratio} : 1"] = shares(cfg.batch, ratio, n)
        rows["all images"] = as_even_as_possible(len(x), n)
        rows["none on the last"] = [cfg.batch // (n - 1)] * (n - 1) + [0]

        for case, counts in rows.items():
            total = sum(counts)
            begin = sum(counts[: group.rank])
            mine = slice(begin, begin + counts[group.rank])
            truth = reference(model, x[:total], y[:total])
            off = {}
            for way in (mean_of_means, weighted_mean):
                found = way(model, x[mine], y[mine], total)
                off[way.__name__] = ((found - truth).norm() / truth.norm()).item()
            rows[case] = {"counts": counts, **off}
            print_on_rank_0(
                f"{case:17} {' + '.join(map(str, counts)):>26} images: mean of means off by "
                f"{off['mean_of_means']:7.2%}, weighted mean by {off['weighted_mean']:.0e}"
            )
            if not off["weighted_mean"] <= cfg.tolerance:
                raise CourseError(f"{case}: the weighted mean is off by {off['weighted_mean']:.1e}")
            if len(set(counts)) == 1:
                expected = off["mean_of_means"] <= cfg.tolerance
            elif counts[-1] == 0:  # its gradient is zero, but it counts as one of n
                expected = abs(off["mean_of_means"] - 1 / n) <= cfg.tolerance
            else:
                expected = off["mean_of_means"] > (cfg.wrong_by if max(counts) >= 2 * min(counts) else 1e-6)
            if not expected:
                raise CourseError(f"{case}: the mean of means is off by {off['mean_of_means']:.1e}")
        record_results("lab_06_uneven", {"rows": rows})


if __name__ == "__main__":
    run(main, Config())
