"""Under DDP and FSDP2 the steps of lab_12_tokens are those of one process; two usual ways to average are not.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_12/proof_token_mean.py
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.parity import assert_all_equal

from lab_12_tokens import (
    NOT_COUNTED,
    MicroBatch,
    average_if,
    build,
    loss_sum,
    micro_batches_of,
    train_step,
)


@dataclass(frozen=True)
class Config:
    steps: int = 3
    learning_rate: float = 0.5
    tolerance: float = 1e-12  # float64
    apart: float = 1e-3  # what differs, differs by more


Weight = Callable[[list[MicroBatch], MicroBatch], torch.Tensor | float]


def count(some: list[MicroBatch]) -> torch.Tensor:
    return sum((labels != NOT_COUNTED).sum() for _, labels in some)


def mean_of_micro_batches(own: list[MicroBatch], one: MicroBatch) -> torch.Tensor:
    """cross_entropy's own mean, divided by the number of micro-batches: what accumulating loops did."""
    return 1 / (len(own) * count([one]))


def mean_of_ranks(own: list[MicroBatch], one: MicroBatch) -> torch.Tensor:
    """Right on one rank: the tokens of all its micro-batches. Then the ranks' means are averaged."""
    return 1 / count(own)


WRONG = {"a mean of each micro-batch": mean_of_micro_batches, "a mean of each rank": mean_of_ranks}
WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "DDP": DistributedDataParallel,
    "FSDP2": fully_shard,
}


def step_scaled_later(
    model: nn.Module, optimizer: torch.optim.Optimizer, stream: Iterator[MicroBatch], accumulate: int
) -> None:
    """As ``train_step``, but load one micro-batch at a time, and scale the gradients when all are counted."""
    tokens = torch.zeros((), dtype=torch.int64, device=next(model.parameters()).device)
    for number in range(1, accumulate + 1):
        micro_batch = next(stream)
        with average_if(number == accumulate, model):
            loss_sum(model, micro_batch).backward()
        tokens += count([micro_batch])
    dist.all_reduce(tokens)
    tokens.clamp_(min=1)  # or 0 / 0 makes every gradient NaN
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(dist.get_world_size()).div_(tokens)
    optimizer.step()
    optimizer.zero_grad()


def wrong_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, own: list[MicroBatch], weight: Weight
) -> None:
    for number, micro_batch in enumerate(own, start=1):
        with average_if(number == len(own), model):
            (loss_sum(model, micro_batch) * weight(own, micro_batch)).backward()
    optimizer.step()
    optimizer.zero_grad()


def new_run(cfg: Config, group: Group, wrapper: Callable) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = wrapper(build(group.device).double())
    return model, torch.optim.SGD(model.parameters(), cfg.learning_rate)


def weights_of(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Whole and by name; of a sharded model they are gathered, so all ranks have to call it."""
    weights = []
    for name, parameter in model.named_parameters():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        weights.append((name.removeprefix("module."), whole.detach()))
    return weights


def micro_batches(name: str, rank: int, step: int, group: Group) -> list[MicroBatch]:
    return micro_batches_of(rank, step, name == "FSDP2", group.device)


def reference(name: str, cfg: Config, group: Group) -> list[tuple[str, torch.Tensor]]:
    """One process on the micro-batches of all ranks: the mean over all tokens of a step."""
    model, optimizer = new_run(cfg, group, lambda model: model)
    for step in range(cfg.steps):
        everyone = [
            micro_batch
            for rank in range(group.world_size)
            for micro_batch in micro_batches(name, rank, step, group)
        ]
        optimizer.zero_grad()
        (sum(loss_sum(model, micro_batch) for micro_batch in everyone) / count(everyone)).backward()
        optimizer.step()
    return weights_of(model)


def check_right(name: str, later: bool, truth: list, cfg: Config, group: Group) -> None:
    model, optimizer = new_run(cfg, group, WRAPPERS[name])
    with record() as log:
        for step in range(cfg.steps):
            own = micro_batches(name, group.rank, step, group)
            if later:
                step_scaled_later(model, optimizer, iter(own), len(own))
            else:
                train_step(model, optimizer, own)
    way = "gradients scaled later" if later else "weighted by all tokens"
    assert_all_equal(f"{name}, {way}:", weights_of(model), truth, cfg.tolerance)
    reductions = log.count("all_reduce") + log.count("reduce_scatter")
    if reductions != 2 * cfg.steps:
        raise CourseError(f"{name}: {reductions} reductions in {cfg.steps} steps, expected 2 in each")
    print_on_rank_0(f"{name:5}  {way}: the weights of one process, 2 reductions in each step")


def check_nothing_counts(name: str, later: bool, cfg: Config, group: Group) -> None:
    """A step of prompts that were cut before their answers: no label counts on any rank."""
    model, optimizer = new_run(cfg, group, WRAPPERS[name])
    before = [(name, weight.clone()) for name, weight in weights_of(model)]
    own = micro_batches(name, group.rank, 0, group)
    for _, labels in own:
        labels.fill_(NOT_COUNTED)
    if later:
        step_scaled_later(model, optimizer, iter(own), len(own))
    else:
        train_step(model, optimizer, own)
    assert_all_equal(f"{name}, no token counts:", weights_of(model), before, tolerance=0.0)


def check_wrong(name: str, way: str, truth: list, cfg: Config, group: Group) -> None:
    model, optimizer = new_run(cfg, group, WRAPPERS[name])
    for step in range(cfg.steps):
        wrong_step(model, optimizer, micro_batches(name, group.rank, step, group), WRONG[way])
    pairs = zip(weights_of(model), truth, strict=True)
    off = max((mine - other).abs().max().item() for (_, mine), (_, other) in pairs)
    if off < cfg.apart:
        raise CourseError(f"{name}, {way}: off by {off:.1e}, it should have differed")
    print_on_rank_0(f"{name:5}  {way}: off by {off:.0e}")


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        for name in WRAPPERS:
            truth = reference(name, cfg, group)
            for later in (False, True):
                check_right(name, later, truth, cfg, group)
                check_nothing_counts(name, later, cfg, group)
            print_on_rank_0(f"{name:5}  a step in which no token counts: no weight changes, none is NaN")
            for way in WRONG:
                check_wrong(name, way, truth, cfg, group)


if __name__ == "__main__":
    run(main, Config())
