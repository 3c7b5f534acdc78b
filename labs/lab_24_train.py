"""Train a chain of stages, one on each worker, with a distributed optimizer: equal to one process.

Run it:      torchrun --standalone --nproc-per-node=3 labs/lab_24_train.py
Written by:  notebooks/24_distributed_autograd.ipynb (edit it there)
"""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed import autograd as dist_autograd
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer

from shared.comm.kernel import wire_bytes
from shared.comm.rpc import rpc_workers
from shared.runtime.errors import CourseError
from shared.runtime.group import process_group
from shared.runtime.run import run
from shared.training.data import load_images
from shared.training.parity import assert_equal


@dataclass(frozen=True)
class Config:
    steps: int = 40
    batch: int = 96
    width: int = 32
    learning_rate: float = 0.15
    momentum: float = 0.9
    tolerance: float = 1e-12  # float64
    accuracy: float = 0.85  # of chains of 2 and 3 stages
    settle_s: float = 0.2


def make_stage(number: int, count: int, cfg: Config) -> nn.Module:
    """Stage ``number`` of ``count``: the first takes 64 pixels, the last gives 10 scores."""
    torch.manual_seed(number)
    inputs = 64 if number == 0 else cfg.width
    if number == count - 1:
        return nn.Linear(inputs, 10).double()
    return nn.Sequential(nn.Linear(inputs, cfg.width), nn.Tanh()).double()


def forward(stage: rpc.RRef, x: torch.Tensor) -> torch.Tensor:
    """Runs on the stage's owner."""
    return stage.local_value()(x)


def own_parameters(stage: rpc.RRef) -> list[rpc.RRef]:
    """References to a stage's parameters. Runs on the stage's owner."""
    return [rpc.RRef(parameter) for parameter in stage.local_value().parameters()]


def parameters_of(stages: list[rpc.RRef]) -> list[rpc.RRef]:
    """References to the parameters of all stages, which stay where they are."""
    return [p for stage in stages for p in rpc.rpc_sync(stage.owner(), own_parameters, args=(stage,))]


def batches(cfg: Config) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Images float64 (batch, 64), labels (batch,)."""
    images = load_images("digits")
    for step in range(cfg.steps):
        chosen = torch.arange(step * cfg.batch, (step + 1) * cfg.batch) % len(images.train_x)
        yield images.train_x[chosen].flatten(1).double(), images.train_y[chosen]


def reference(count: int, cfg: Config) -> tuple[list[float], nn.Module]:
    """Losses and model of one process that holds all stages."""
    model = nn.Sequential(*[make_stage(number, count, cfg) for number in range(count)])
    optimizer = torch.optim.SGD(model.parameters(), cfg.learning_rate, momentum=cfg.momentum)
    losses = []
    for x, y in batches(cfg):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


def payload(count: int, cfg: Config) -> int:
    """Bytes of activations and gradients that worker 0 sends in a step, those to itself with them."""
    widths = [64] + [cfg.width] * (count - 1) + [10]
    to_stages = sum(inputs + outputs for inputs, outputs in pairwise(widths))
    return cfg.batch * (to_stages + widths[1]) * 8  # its own stage answers, too


def train(stages: list[rpc.RRef], cfg: Config) -> tuple[list[float], float | None]:
    """The training loop of worker 0; returns the losses, and the bytes that it sends in a step."""
    rate = cfg.learning_rate
    momentum = cfg.momentum
    optimizer = DistributedOptimizer(torch.optim.SGD, parameters_of(stages), lr=rate, momentum=momentum)
    losses = []
    before = None
    for step, (x, y) in enumerate(batches(cfg)):  # no zero_grad: each step has its own context
        if step == 1:  # the first step has opened the connections
            before = wire_bytes()
        with dist_autograd.context() as context_id:
            for stage in stages:
                x = rpc.rpc_sync(stage.owner(), forward, args=(stage, x))
            loss = F.cross_entropy(x, y)
            dist_autograd.backward(context_id, [loss])
            optimizer.step(context_id)  # on every owner, with the gradients of this context
        losses.append(loss.item())
    time.sleep(cfg.settle_s)  # the kernel counts bytes when the other side has confirmed them
    return losses, None if before is None else (wire_bytes() - before) / (cfg.steps - 1)


def main(cfg: Config) -> None:
    logging.captureWarnings(True)  # of DistributedOptimizer: its TorchScript is deprecated
    with (
        process_group(smallest=2, timeout_s=60) as group,
        rpc_workers(group, timeout_s=60, tcp_only=True) as workers,
    ):
        if group.rank == 0:  # the others are called
            count = len(workers)
            stages = [
                rpc.remote(name, make_stage, args=(number, count, cfg)) for number, name in enumerate(workers)
            ]
            losses, sent = train(stages, cfg)
            alone, model = reference(count, cfg)
            curves = torch.tensor([losses, alone], dtype=torch.float64)
            worst = assert_equal("losses", *curves, cfg.tolerance)
            weights = [parameter.to_here() for parameter in parameters_of(stages)]
            largest = max(
                assert_equal("parameter", ours, theirs, cfg.tolerance)
                for ours, theirs in zip(weights, model.parameters(), strict=True)
            )
            print(f"{count} stages on {count} workers, {len(weights)} parameters, {cfg.steps} steps")
            print(f"largest difference to one process: loss {worst:.0e}, parameters {largest:.0e}")
            images = load_images("digits")
            right = model(images.test_x.flatten(1).double()).argmax(1) == images.test_y
            share = right.double().mean()
            if losses[-1] >= losses[0] or count <= 3 and share < cfg.accuracy:  # longer chains learn slower
                raise CourseError(f"loss {losses[0]:.2f} to {losses[-1]:.2f}, {share:.1%} of the new images")
            print(f"{share:.1%} of {len(right)} new images recognised")
            if sent and not 1 <= sent / payload(count, cfg) < 1.1:
                raise CourseError(f"{sent:,.0f} bytes sent in a step, for {payload(count, cfg):,} of payload")
            print(f"worker 0 sends {payload(count, cfg):,} bytes of activations and gradients in a step")


if __name__ == "__main__":
    run(main, Config())
