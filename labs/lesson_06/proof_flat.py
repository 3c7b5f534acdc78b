"""One all-reduce per parameter against one for all: the same gradients, calls and bytes counted.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_06/proof_flat.py
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from shared.comm.kernel import wire_bytes
from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.data import load_images
from shared.training.parity import assert_equal

from lab_06_by_hand import average_gradients, broadcast_parameters


@dataclass(frozen=True)
class Config:
    layers: int = 24  # of 64 x 64, each with a weight and a bias
    global_batch: int = 840  # divides by every world size up to 8
    steps: int = 10
    tolerance: float = 1e-12  # float64; a ring adds the parts of a longer tensor in another order
    wire_slack: float = 0.02  # gloo's own headers, as a fraction, beside 2 KiB per step


class Residual(nn.Module):
    """(batch, 64) to (batch, 10) scores through many small layers, each added to what goes past it."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(layers))
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x)


def average_flat(model: nn.Module) -> None:
    """``average_gradients`` with one all-reduce for all gradients. Collective.

    The gradients are copied into one flat buffer, which takes as much memory again, and back. All of
    them must have one dtype and one device.
    """
    gradients = [parameter.grad for parameter in model.parameters() if parameter.requires_grad]
    flat = flattened(gradients)
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    parts = flat.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def flattened(tensors: list[torch.Tensor]) -> torch.Tensor:
    """All numbers in one vector."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def gradient_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """The gradients of the mean loss over this batch, in the order of the parameters."""
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def reference(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The gradient that one process computes on the joined batch, flat."""
    return flattened(gradient_of(model, x, y))


def measure(average: Callable, model: nn.Module, own: list[torch.Tensor], cfg: Config, group: Group) -> dict:
    """Average the gradients ``own`` some times; return calls, bytes per step, and the result."""
    for parameter, gradient in zip(model.parameters(), own, strict=True):
        parameter.grad = gradient.clone()
    with record() as log:
        average(model)
    dist.barrier()
    before = wire_bytes()
    for _ in range(cfg.steps):
        for parameter, gradient in zip(model.parameters(), own, strict=True):
            parameter.grad = gradient.clone()
        average(model)
    dist.barrier()
    sent = None
    if before is not None and group.backend == "gloo":
        sent = (wire_bytes() - before) / cfg.steps
    return {
        "calls": log.count("all_reduce"),
        "handed_in": log.bytes("all_reduce"),
        "sent": sent,
        "averaged": flattened([parameter.grad for parameter in model.parameters()]),
    }


def main(cfg: Config) -> None:
    with process_group(timeout_s=20) as group:
        data = load_images("digits")
        x = data.train_x[: cfg.global_batch].flatten(1).double().to(group.device)
        y = data.train_y[: cfg.global_batch].to(group.device)
        model = Residual(cfg.layers).double().to(group.device)
        broadcast_parameters(model)
        truth = reference(model, x, y)
        mine = slice(group.rank, None, group.world_size)
        own = gradient_of(model, x[mine], y[mine])

        whole = sum(gradient.nbytes for gradient in own)
        ring = 2 * (group.world_size - 1) / group.world_size * whole
        print_on_rank_0(f"{len(own)} gradients, {whole:,} bytes; a ring sends {ring:,.0f} per rank")
        apart = (flattened(own) - truth).abs().max().item()
        print_on_rank_0(f"largest difference to one process: {apart:.4f} as long as nothing is averaged")

        rows = {}
        for average, calls in ((average_gradients, len(own)), (average_flat, 1)):
            row = measure(average, model, own, cfg, group)
            name = average.__name__
            difference = assert_equal(name, row.pop("averaged"), truth, cfg.tolerance)
            print_on_rank_0(f"{name}: {row['calls']:g} all-reduces, {difference:.0e} afterwards")
            if (row["calls"], row["handed_in"]) != (calls, whole):
                raise CourseError(
                    f"{name}: {row['calls']:g} calls with {row['handed_in']:,.0f} bytes per step, "
                    f"expected {calls} with {whole:,}"
                )
            rows[name] = row
        sent = rows["average_flat"]["sent"]
        if sent is not None and abs(sent - ring) > cfg.wire_slack * ring + 2048:
            raise CourseError(f"rank {group.rank} sent {sent:,.0f} bytes per step, not {ring:,.0f}")


if __name__ == "__main__":
    run(main, Config())
