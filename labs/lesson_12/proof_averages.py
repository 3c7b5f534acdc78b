"""DDP under Join: ranks with 5, 6, ... inputs end together. Two kinds of average; momentum stays behind.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_12/proof_averages.py
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from shared.comm.record import record
from shared.runtime.errors import CourseError, ParityError, neighbour_is_gone
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.run import run
from shared.training.parity import assert_same_on_every_rank, parameters

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Config:
    inputs: int = 5  # rank r has r more
    learning_rate: float = 0.1
    timeout_s: float = 5.0  # without Join
    tolerance: float = 1e-12  # float64


WAYS = {
    "without Join": {"enable": False},
    "with Join": {},
}


def build(device: torch.device) -> nn.Linear:
    """One linear layer (batch, 4) to (batch, 1) in float64, the same on each rank."""
    torch.manual_seed(12)
    return nn.Linear(4, 1, dtype=torch.float64).to(device)


def batches_of(rank: int, cfg: Config, device: torch.device) -> list[Batch]:
    """What this rank has to learn: 5 + rank batches of (16, 4) and (16, 1) random numbers."""
    generator = torch.Generator().manual_seed(rank)
    numbers = torch.randn(cfg.inputs + rank, 16, 5, dtype=torch.float64, generator=generator).to(device)
    return [(batch[:, :4], batch[:, 4:]) for batch in numbers]


def train(ddp: nn.Module, batches: Iterable[Batch], optimizer: torch.optim.Optimizer, **options: bool) -> int:
    """Make a step for each of this rank's batches, however many other ranks have; return how many.

    ``options`` are those of ``Join``.
    """
    used = 0
    with Join([ddp], **options):
        for x, y in batches:
            optimizer.zero_grad()
            F.mse_loss(ddp(x), y).backward()
            optimizer.step()
            used += 1
    return used


def sgd(ddp: nn.Module, learning_rate: float, momentum: float = 0.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(ddp.parameters(), learning_rate, momentum=momentum)


# --- An end, or an error ---


def counted(batches: list[Batch], used: list[int]) -> Iterator[Batch]:
    """The batches; notes the number of each one whose step is done."""
    for number, batch in enumerate(batches, start=1):
        yield batch
        used.append(number)


def said_by(error: RuntimeError, cfg: Config) -> str:
    """The words that matter of gloo's error; which is heard, depends on the moment."""
    timed_out = f"Timed out waiting {1000 * cfg.timeout_s:.0f}ms"
    text = str(error)
    if timed_out in text:
        return timed_out
    if neighbour_is_gone(text):
        return "the connection is closed"
    raise error


def attempt(options: dict[str, bool], cfg: Config, group: Group) -> str:
    """Run the plain lab's loop with these options of Join. Returns how it ends on this rank."""
    device = group.device
    backend = None
    if not options.get("enable", True):
        device = torch.device("cpu")
        backend = "gloo"  # nccl would end the process
    own = dist.new_group(timeout=timedelta(seconds=cfg.timeout_s), backend=backend)
    ddp = DistributedDataParallel(build(device), process_group=own)
    batches = batches_of(group.rank, cfg, device)
    used: list[int] = []
    try:
        train(ddp, counted(batches, used), sgd(ddp, cfg.learning_rate), **options)
    except RuntimeError as error:
        return f"input {len(used) + 1}: {said_by(error, cfg)}"
    return f"Rank {group.rank} has exhausted all {len(used)} of its inputs!"


def two_ways(cfg: Config, group: Group) -> None:
    """Without Join only rank 0 ends well: it has the fewest inputs."""
    for way, options in WAYS.items():
        outcome = attempt(options, cfg, group)
        print_on_rank_0(f"{way}:")
        print_in_rank_order(f"  {outcome}")
        ends_well = way == "with Join" or (way == "without Join" and group.rank == 0)
        expected = f"input {cfg.inputs + 1}: "
        if ends_well:
            expected = f"Rank {group.rank} has exhausted all {cfg.inputs + group.rank} of its inputs!"
        if not outcome.startswith(expected):
            raise CourseError(f"{way}: {outcome!r}, expected {expected!r}")


# --- Averages ---


def gradients_seen(ddp: nn.Module, batches: list[Batch], seen: list[float]) -> Iterator[Batch]:
    """The batches; notes the gradient that each step leaves."""
    for batch in batches:
        yield batch
        seen.append(ddp.module.weight.grad.item())


def averages(by_all: bool, cfg: Config, group: Group) -> tuple[list[float], int]:
    """(the gradients that DDP leaves on this rank, step by step; how many all-reduces it took).

    The model is one weight w = 0, the loss is (w x - y)^2 with x = 1 and y = -(1 + r) / 2 on rank r. So the
    gradient of rank r is 1 + r, and stays so: the learning rate is 0.
    """
    layer = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(layer.weight)
    ddp = DistributedDataParallel(layer.to(group.device))
    x = torch.ones(1, 1, dtype=torch.float64, device=group.device)
    y = torch.full_like(x, -(1 + group.rank) / 2)
    batches = [(x, y)] * (cfg.inputs + group.rank)
    seen: list[float] = []
    with record() as log:
        train(ddp, gradients_seen(ddp, batches, seen), sgd(ddp, 0.0), divide_by_initial_world_size=by_all)
    return seen, log.count("all_reduce")


def expected_averages(by_all: bool, cfg: Config, ranks: int) -> list[float]:
    """The same averages by plain arithmetic."""
    expected = []
    for step in range(cfg.inputs + ranks - 1):
        present = [1.0 + rank for rank in range(ranks) if step < cfg.inputs + rank]
        expected.append(sum(present) / (ranks if by_all else len(present)))
    return expected


def check_averages(by_all: bool, cfg: Config, group: Group) -> None:
    """Compare DDP's averages with arithmetic, and count Join's all-reduces."""
    seen, calls = averages(by_all, cfg, group)
    expected = expected_averages(by_all, cfg, group.world_size)
    name = f"divide_by_initial_world_size={by_all}"
    off = max(abs(a - b) for a, b in zip(seen, expected, strict=False))  # this rank may have run out earlier
    if off > cfg.tolerance:
        raise CourseError(f"{name}: {seen}, expected {expected}")
    steps = len(expected)
    expected_calls = 3 * steps + 2  # DDP's bucket and Join's two in each step, Join's two at the end
    if calls != expected_calls:
        raise CourseError(f"{calls} calls of all_reduce in {steps} steps, expected {expected_calls}")
    print_on_rank_0(f"{name}: averages {[round(value, 4) for value in expected]}")


# --- What Join does not do ---


def check_momentum(cfg: Config, group: Group) -> None:
    """After Join the ranks have the same parameters, and each the momentum of its own last step."""
    ddp = DistributedDataParallel(build(group.device))
    optimizer = sgd(ddp, cfg.learning_rate, momentum=0.9)
    train(ddp, batches_of(group.rank, cfg, group.device), optimizer)
    assert_same_on_every_rank("after Join, parameter", parameters(ddp))
    momentum = [(name, optimizer.state[p]["momentum_buffer"]) for name, p in ddp.named_parameters()]
    try:
        assert_same_on_every_rank("after Join, momentum of", momentum)
    except ParityError:
        print_on_rank_0("after Join: the ranks have the same parameters, and each its own momentum")
        return
    raise CourseError("after Join the ranks' momentum should have differed")


def main(cfg: Config) -> None:
    assert set(Joinable.__subclasses__()) == {DistributedDataParallel, ZeroRedundancyOptimizer}
    with process_group(timeout_s=20, smallest=2) as group:
        two_ways(cfg, group)
        for by_all in (True, False):
            check_averages(by_all, cfg, group)
        steps = cfg.inputs + group.world_size - 1
        print_on_rank_0(f"Join added {2 * steps + 2} all-reduces: 2 in each of {steps} steps, 2 at the end")
        check_momentum(cfg, group)


if __name__ == "__main__":
    run(main, Config())
