"""Ranks that communicate, in each way of the sweep, beside workers in one process: the same parameters.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_14/proof_ways.py

It also compares what the ranks send with the formulas of ``lesson_14.traffic``.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from shared.comm.record import CommRecord, record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.parity import assert_equal

from lab_14_top_k import TopK
from lesson_14 import workers
from lesson_14.proof_local import DiLoCo, LocalSGD
from lesson_14.proof_power_sgd import PowerSGD
from lesson_14.traffic import traffic
from lesson_14.workers import LAYERS, WAYS, Run, Workers

MESSAGES = {"all_reduce": 2, "all_gather": 1}  # {operation: messages of a ring, for each other rank}


@dataclass(frozen=True)
class Config:
    steps: int = 8
    seed: int = 3
    lr: float = 0.1
    outer_lr: float = 0.4
    tolerance: float = 1e-9  # float64; both ways to compute round differently, and steps make more of it
    of_bf16: float = 1e-3  # a number that rounds the other way


class Net(nn.Sequential):
    """(batch, 64) to (batch, 10) scores, the perceptron of the sweep, in float64."""

    def __init__(self, seed: int) -> None:
        layers: list[nn.Module] = []
        for size, out in zip(LAYERS, LAYERS[1:], strict=False):
            layers += [nn.Linear(size, out, dtype=torch.float64), nn.ReLU()]
        super().__init__(*layers[:-1])
        nn.utils.vector_to_parameters(workers.first_parameters(seed), self.parameters())


class EachStep:
    """Gradients are averaged in each step, by ``average``: (numel,) to the same, the mean over the ranks."""

    def __init__(self, params: list[nn.Parameter], average: Callable) -> None:
        self.params = params
        self.average = average

    def after_backward(self) -> None:
        flat = torch.cat([p.grad.flatten() for p in self.params])
        parts = self.average(flat).split([p.numel() for p in self.params])
        for p, part in zip(self.params, parts, strict=True):
            p.grad.copy_(part.view_as(p))

    def after_step(self) -> None:
        pass


class LowRank(EachStep):
    """Gradients are averaged by PowerSGD, which has to know their shapes."""

    def __init__(self, params: list[nn.Parameter], rank: int) -> None:
        self.params = params
        self.power_sgd = PowerSGD(rank)

    def after_backward(self) -> None:
        self.power_sgd.average(self.params, [p.grad for p in self.params])


class NowAndThen(EachStep):
    """Nothing is averaged in a step; ``meeting`` decides when the ranks synchronize."""

    def __init__(self, meeting: LocalSGD | DiLoCo) -> None:
        self.meeting = meeting

    def after_backward(self) -> None:
        pass

    def after_step(self) -> None:
        self.meeting.after_step()


def all_reduce_as(dtype: torch.dtype) -> Callable:
    def average(flat: torch.Tensor) -> torch.Tensor:
        small = flat.to(dtype).div_(dist.get_world_size())
        dist.all_reduce(small)
        return small.to(flat.dtype)

    return lambda params: EachStep(params, average)


def top_k(share: float, feedback: bool = True) -> Callable:
    def build(params: list[nn.Parameter]) -> EachStep:
        like = torch.cat([torch.zeros_like(p).flatten() for p in params])
        return EachStep(params, TopK(like, int(share * len(like)), feedback).average)

    return build


def ways(cfg: Config) -> dict[str, Callable]:
    """{way of the sweep: what makes of a model's parameters an object with after_backward and after_step}."""
    return {
        "all-reduce": all_reduce_as(torch.float64),
        "bf16": all_reduce_as(torch.bfloat16),
        "PowerSGD, rank 4": lambda params: LowRank(params, 4),
        "PowerSGD, rank 1": lambda params: LowRank(params, 1),
        "top 10 %": top_k(0.1),
        "top 1 %": top_k(0.01),
        "top 1 %, no feedback": top_k(0.01, feedback=False),
        "local SGD, H = 4": lambda params: NowAndThen(LocalSGD(params, 4)),
        "DiLoCo, H = 4": lambda params: NowAndThen(DiLoCo(params, 4, cfg.outer_lr)),
    }


def messages_of(log: CommRecord) -> int:
    """Messages that a rank sends one after the other, if each call is a ring."""
    return sum(MESSAGES[call.op] * (len(call.ranks) - 1) for call in log.calls)


def compare(name: str, build: Callable, group: Group, cfg: Config) -> CommRecord:
    """Train this rank beside all workers in one process; returns what it sent.

    Raises:
        ParityError: after a step a parameter differs.
    """
    many = workers.Config(workers=group.world_size, steps=cfg.steps)
    in_one = Workers(WAYS[name], [Run(cfg.seed, cfg.lr, cfg.outer_lr)], many)
    model = Net(cfg.seed)
    way = build(list(model.parameters()))
    sgd = torch.optim.SGD(model.parameters(), cfg.lr, momentum=many.momentum)
    allowed = cfg.of_bf16 if name == "bf16" else cfg.tolerance
    split = in_one.splits[cfg.seed]
    log = record()
    for step in range(cfg.steps):
        chosen = in_one.batches[cfg.seed][step, group.rank]
        sgd.zero_grad()
        F.cross_entropy(model(split.train_x[chosen]), split.train_y[chosen]).backward()
        with log:
            way.after_backward()
        sgd.step()
        with log:
            way.after_step()
        in_one.step()
        mine = nn.utils.parameters_to_vector(model.parameters())
        assert_equal(f"{name}, step {step}", mine, in_one.parameters[0, group.rank], allowed)
    return log


def check_traffic(name: str, log: CommRecord, group: Group, cfg: Config) -> None:
    sent = traffic(name, group.world_size, itemsize=8)
    counted = (log.by_rule() / cfg.steps, messages_of(log) / cfg.steps)
    if abs(counted[0] - sent.bytes) > 1e-6 * sent.bytes or abs(counted[1] - sent.messages) > 1e-6:
        raise CourseError(f"{name}: a step sends {counted} bytes and messages, the formula says {sent}")


def main(cfg: Config) -> None:
    os.environ["RANK_BY_RANK_DEVICE"] = "cpu"  # where the sweep was
    with process_group(timeout_s=60, smallest=2) as group:
        built = ways(cfg)
        for name, build in built.items():
            log = compare(name, build, group, cfg)
            check_traffic(name, log, group, cfg)
        print_on_rank_0(f"ranks and workers have the same parameters after each step: {'; '.join(built)}")
        print_on_rank_0("bytes and messages are those of the formulas")


if __name__ == "__main__":
    run(main, Config())
