"""Ranks with unequal shares of images or of tokens: the mean of means is wrong, the weighted mean is right.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_06/proof_uneven.py
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.data import load_images
from shared.training.models import ConvNet

from lab_06_by_hand import average_gradients, broadcast_parameters


@dataclass(frozen=True)
class Config:
    batch: int = 120  # images of all ranks together
    ratios: tuple[int, ...] = (1, 2, 4, 8, 16)  # rank 0 has so many times the images of another rank
    tolerance: float = 1e-12  # float64, relative to the gradient of one process
    wrong_by: float = 0.01  # the mean of means must be off by more, from a ratio of 2 on
    draws: int = 8  # of the images, for each ratio
    vocabulary: int = 16
    sequences: int = 6  # on each rank
    length: int = 24  # of a sequence, padding included


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
    counts = {}
    for ratio in cfg.ratios:
        counts[f"{ratio} : 1"] = shares(cfg.batch, ratio, world_size)
    counts["all images"] = as_even_as_possible(images, world_size)
    counts["none on the last"] = [cfg.batch // (world_size - 1)] * (world_size - 1) + [0]
    return counts


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


def errors_of(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, counts: list[int], rank: int
) -> tuple[float, float]:
    """How far the gradients of both ways are off when the ranks divide ``x`` by ``counts``. Collective."""
    total = sum(counts)
    begin = sum(counts[:rank])
    mine = slice(begin, begin + counts[rank])
    truth = reference(model, x[:total], y[:total])
    errors = []
    for way in (mean_of_means, weighted_mean):
        model.zero_grad()
        way(model, x[mine], y[mine], total)
        errors.append(relative_error(flat_gradient(model), truth))
    return errors[0], errors[1]


def is_as_wrong_as_expected(off: float, counts: list[int], cfg: Config) -> bool:
    """Whether the mean of means is off by what these shares make of it."""
    if len(set(counts)) == 1:
        return off <= cfg.tolerance
    if 0 in counts:  # N - 1 equal shares, then an average over N ranks: (N - 1) / N of the gradient
        return abs(off - 1 / len(counts)) <= cfg.tolerance
    return off > (cfg.wrong_by if max(counts) >= 2 * min(counts) else 1e-6)


def try_case(case: str, counts: list[int], model: nn.Module, cfg: Config, group: Group) -> None:
    """Compare both ways with one process, and report. Collective.

    Raises:
        CourseError: the weighted mean is not right, or the mean of means is not as wrong as it should be.
    """
    data = load_images("digits")
    x, y = data.train_x.double().to(group.device), data.train_y.to(group.device)
    errors = []
    for draw in range(cfg.draws if sum(counts) < len(x) else 1):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(draw)).to(group.device)
        errors.append(errors_of(model, x[order], y[order], counts, group.rank))
    by_means, by_weights = zip(*errors, strict=True)
    if not max(by_weights) <= cfg.tolerance:
        raise CourseError(f"{case}: the weighted mean is off by {max(by_weights):.1e}")
    for off in by_means:
        if not is_as_wrong_as_expected(off, counts, cfg):
            raise CourseError(f"{case}: the mean of means is off by {off:.1e}, which is not expected")
    mean = sum(by_means) / len(by_means)
    print_on_rank_0(
        f"{case:17} {' + '.join(map(str, counts)):>26} images: mean of means off by "
        f"{mean:6.2%}, weighted mean by {max(by_weights):.0e}"
    )


def sequences_of(rank: int, cfg: Config) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and labels of one rank, both (sequences, length). The higher the rank, the more is padding."""
    numbers = torch.Generator().manual_seed(rank)
    tokens = torch.randint(cfg.vocabulary, (cfg.sequences, cfg.length), generator=numbers)
    labels = torch.randint(cfg.vocabulary, (cfg.sequences, cfg.length), generator=numbers)
    labels[:, cfg.length // (rank + 1) :] = -100
    return tokens, labels


def loss_of(
    model: nn.Module, tokens: torch.Tensor, labels: torch.Tensor, reduction: str = "mean"
) -> torch.Tensor:
    """The mean or the sum over the tokens that count."""
    scores = model(tokens).flatten(0, 1)
    return F.cross_entropy(scores, labels.flatten(), ignore_index=-100, reduction=reduction)


def token_mean(scores: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss to call backward on, and the mean over all tokens of all ranks, to log. Collective.

    ``scores`` (tokens, vocabulary), ``labels`` (tokens,); -100 does not count. DDP averages the gradients.
    """
    n_total = (labels != -100).sum()
    dist.all_reduce(n_total)
    n_total = n_total.clamp(min=1)  # no token at all: a loss of 0, and not 0 / 0
    loss = F.cross_entropy(scores, labels, ignore_index=-100, reduction="sum")
    loss = loss * dist.get_world_size() / n_total
    to_log = loss.detach().clone()
    dist.all_reduce(to_log, op=dist.ReduceOp.AVG)
    return loss, to_log


def try_tokens(cfg: Config, group: Group) -> None:
    """The same number of sequences on each rank, different numbers of tokens that count. Collective.

    Raises:
        CourseError: the weighted loss does not give one process's gradient and loss, or the plain one does;
            or it is not 0 where no token counts.
    """
    torch.manual_seed(0)
    layers = (nn.Embedding(cfg.vocabulary, 8), nn.Tanh(), nn.Linear(8, cfg.vocabulary))
    model = nn.Sequential(*layers).double().to(group.device)
    everyone = [sequences_of(rank, cfg) for rank in range(group.world_size)]
    all_tokens, all_labels = (torch.cat(parts).to(group.device) for parts in zip(*everyone, strict=True))
    loss_alone = loss_of(model, all_tokens, all_labels)
    loss_alone.backward()
    truth = flat_gradient(model)

    tokens, labels = (part.to(group.device) for part in everyone[group.rank])
    ddp = DistributedDataParallel(model)
    ddp.zero_grad()
    plain = loss_of(ddp, tokens, labels)
    plain.backward()
    off = {"plain": relative_error(flat_gradient(model), truth)}
    ddp.zero_grad()
    loss, to_log = token_mean(ddp(tokens).flatten(0, 1), labels.flatten())
    loss.backward()
    off["weighted"] = relative_error(flat_gradient(model), truth)
    if off["plain"] <= cfg.wrong_by or off["weighted"] > cfg.tolerance:
        raise CourseError(f"tokens: the gradients of DDP are off by {off}")
    if abs(to_log - loss_alone) > cfg.tolerance:
        raise CourseError(f"tokens: {to_log.item()} is logged, one process has {loss_alone.item()}")

    ddp.zero_grad()
    nothing, _ = token_mean(ddp(tokens).flatten(0, 1), torch.full_like(labels.flatten(), -100))
    nothing.backward()
    if nothing != 0 or flat_gradient(model).any():
        raise CourseError(f"no token counts, and the loss is {nothing.item()}")
    counts = [(labels != -100).sum().item() for _, labels in everyone]
    print_on_rank_0(
        f"{cfg.sequences} sequences each, {' + '.join(map(str, counts))} tokens: plain averaging off "
        f"by {off['plain']:.2%}, weighted by {off['weighted']:.0e}"
    )
    print_on_rank_0(
        f"rank 0's own `loss` is {(loss / plain).item():.2f} times the mean over its tokens; "
        "the average over ranks is the loss of one process"
    )
    print_on_rank_0("no token counts on any rank: the loss and all gradients are 0")


def main(cfg: Config) -> None:
    with process_group(timeout_s=20, smallest=2) as group:
        images = len(load_images("digits").train_x)
        model = ConvNet().double().to(group.device)
        broadcast_parameters(model)
        for case, counts in cases(cfg, images, group.world_size).items():
            try_case(case, counts, model, cfg, group)
        try_tokens(cfg, group)


if __name__ == "__main__":
    run(main, Config())
