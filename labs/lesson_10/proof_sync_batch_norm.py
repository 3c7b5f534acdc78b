"""Batch normalization over the batches of several ranks equals nn.BatchNorm on the joined batch.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_10/proof_sync_batch_norm.py
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.parity import assert_equal

from lesson_10.sync_batch_norm import convert_batch_norm


@dataclass(frozen=True)
class Config:
    seed: int = 5
    cases: tuple[tuple[int, str], ...] = (
        (2, "even"),
        (4, "uneven"),
    )  # ranks, shares
    channels: int = 3
    side: int = 4
    per_rank: int = 4  # images, on average
    steps: int = 3
    tolerance: float = 1e-12


def shares(kind: str, size: int, cfg: Config) -> list[int]:
    """How many of the images each rank holds."""
    total = size * cfg.per_rank
    return [cfg.per_rank] * size if kind == "even" else [1] * (size - 1) + [total - size + 1]


def one_step(layer: nn.Module, x: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Forward and backward of a loss that is a sum over images; return output and gradient of ``x``."""
    x = x.clone().requires_grad_()
    out = layer(x)
    (out * wanted).sum().backward()
    return out.detach(), x.grad


def compare(kind: str, size: int, pg: dist.ProcessGroup, cfg: Config, group: Group) -> tuple[float, float]:
    """Take steps; return how far our layer, and a local one, are at most from that on the joined batch."""
    split = shares(kind, size, cfg)
    draw = torch.Generator().manual_seed(cfg.seed)
    whole, ours, local = (nn.BatchNorm2d(cfg.channels, dtype=torch.float64) for _ in range(3))
    for name, parameter in whole.named_parameters():
        parameter.data = torch.randn(cfg.channels, generator=draw, dtype=torch.float64)
        for layer in (ours, local):
            getattr(layer, name).data = parameter.data.clone()
    whole, ours, local = (layer.to(group.device) for layer in (whole, convert_batch_norm(ours, pg), local))
    largest = local_off = 0.0
    for step in range(cfg.steps):
        shape = (sum(split), cfg.channels, cfg.side, cfg.side)
        x, wanted = (torch.randn(shape, generator=draw, dtype=torch.float64) for _ in range(2))
        x = (x + torch.arange(len(x)).reshape(-1, 1, 1, 1)).to(group.device)  # the ranks' means differ
        wanted = wanted.to(group.device)
        mine = slice(sum(split[: group.rank]), sum(split[: group.rank + 1]))
        out, grad = one_step(whole, x, wanted)
        ours.zero_grad()
        with record() as log:
            own_out, own_grad = one_step(ours, x[mine], wanted[mine])
        if log.counts() != {"all_reduce": 2}:
            raise CourseError(f"one collective per pass, not {dict(log.counts())}")
        pairs = {"output": (own_out, out[mine]), "gradient of x": (own_grad, grad[mine])}
        for name in ("weight", "bias"):  # each rank has its part of a sum over images
            total = getattr(ours, name).grad.clone()
            dist.all_reduce(total, group=pg)
            pairs[f"gradient of {name}"] = total, getattr(whole, name).grad
        pairs |= {name: (buffer, dict(whole.named_buffers())[name]) for name, buffer in ours.named_buffers()}
        for name, (actual, expected) in pairs.items():
            what = f"{size} rank(s), {kind} shares, step {step}: {name}"
            largest = max(largest, assert_equal(what, actual, expected, cfg.tolerance))
        whole.zero_grad()
        local_off = max(local_off, (local(x[mine]) - out[mine]).abs().max().item())
    return largest, local_off


def main(cfg: Config) -> None:
    with process_group(seed=cfg.seed, smallest=max(size for size, _ in cfg.cases)) as group:
        for size, kind in cfg.cases:
            pg = dist.new_group(range(size))
            errors = compare(kind, size, pg, cfg, group) if group.rank < size else (0.0, 0.0)
            worst = torch.tensor(errors, device=group.device)
            dist.all_reduce(worst, dist.ReduceOp.MAX)
            largest, local = worst.tolist()
            if local < 1:
                raise CourseError(
                    f"local batch norm should have differed by more than 1, and does by {local}"
                )
            split = " + ".join(map(str, shares(kind, size, cfg)))
            print_on_rank_0(f"{split:14} images: ours is off by {largest:.0e}, local by {local:.2f}")


if __name__ == "__main__":
    run(main, Config())
