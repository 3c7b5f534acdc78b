"""Parameters that the loss does not use, and no_sync: what each way costs, in all-reduces and bytes.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_12_unused.py
Written by:  notebooks/12_uneven_inputs.ipynb
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.parity import assert_all_equal, gradients


@dataclass(frozen=True)
class Config:
    micro_batches: int = 8
    tolerance: float = 1e-12  # float64


UNUSED = ("Expected to have finished reduction", "did not receive grad", ": 2 3", "DEBUG to either INFO")
CHANGED = ("Your training graph has changed in this iteration",)
WAYS = {
    "both layers used": {},
    "second frozen": {},
    "find_unused_parameters": {"find_unused_parameters": True},
    "static_graph": {"static_graph": True},
}


class TwoPaths(nn.Module):
    """Two layers, of which forward uses the first or both: (batch, 64) to (batch, 64), float64."""

    def __init__(self) -> None:
        super().__init__()
        self.always = nn.Linear(64, 64, dtype=torch.float64)
        self.sometimes = nn.Linear(64, 64, dtype=torch.float64)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        x = torch.tanh(self.always(x))
        return torch.tanh(self.sometimes(x)) if both else x


def build(group: Group) -> TwoPaths:
    torch.manual_seed(1)
    return TwoPaths().to(group.device)


def loss_of(model: nn.Module, both: bool, part: int, group: Group) -> torch.Tensor:
    """The mean loss of part 0, 1, 2, ... of the data: (16, 64) random numbers each."""
    x = torch.randn(16, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(part))
    return model(x.to(group.device), both).square().mean()


def expect_error(texts: Sequence[str], function: Callable, *args) -> None:
    """Call ``function``, which must raise an error that holds these texts."""
    said = "no error"
    try:
        function(*args)
    except RuntimeError as error:
        said = str(error)
    if not all(text in said for text in texts):
        raise CourseError(f"expected {texts}, but: {said}")


def check_error(group: Group) -> None:
    """Without an option, DDP complains of an unused layer when the next forward begins."""
    ddp = DistributedDataParallel(build(group))
    loss_of(ddp, False, group.rank, group).backward()
    expect_error(UNUSED, loss_of, ddp, False, group.rank, group)
    print_on_rank_0("no option: forward of the next step raises, and names parameters 2 and 3")


def bytes_of_a_step(ddp: nn.Module, both: bool, group: Group) -> list[int]:
    """Bytes of each all-reduce in a step, the largest first."""
    for _ in range(3):  # in the first steps DDP settles its buckets
        ddp.zero_grad()
        loss_of(ddp, both, group.rank, group).backward()
    with record() as log:
        ddp.zero_grad()
        loss_of(ddp, both, group.rank, group).backward()
    return sorted((call.bytes for call in log.of("all_reduce")), reverse=True)


def unused(cfg: Config, group: Group) -> dict[str, list[int]]:
    """{way: bytes of each all-reduce in a step}. The second layer is used in the first way only."""
    found = {}
    n = group.world_size
    for way, option in WAYS.items():
        both = way == "both layers used"
        model = build(group)
        model.sometimes.requires_grad_(way != "second frozen")
        ddp = DistributedDataParallel(model, **option)
        found[way] = bytes_of_a_step(ddp, both, group)
        alone = build(group)
        for part in range(n):
            (loss_of(alone, both, part, group) / n).backward()
        assert_all_equal(way, gradients(ddp), gradients(alone), cfg.tolerance)  # where one has none, both
        print_on_rank_0(f"{way:24}all-reduces in a step, in bytes: {found[way]}")

    whole = 8 * sum(p.numel() for p in alone.parameters())
    used_map = 4 * len(list(alone.parameters()))
    expected = [[whole], [whole // 2], [whole, used_map], [whole]]
    if list(found.values()) != expected:
        raise CourseError(f"bytes of all-reduces: {found}, expected {expected}")
    return found


def in_turns(cfg: Config, group: Group) -> None:
    """The second layer is used on rank 0 only, or in the second step only."""
    n = group.world_size
    alone = build(group)
    for part in range(n):
        (loss_of(alone, part == 0, part, group) / n).backward()
    model = build(group)
    model.spare = nn.Linear(1, 1).to(group.device)  # used by nobody: its gradient stays None
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    loss_of(ddp, group.rank == 0, group.rank, group).backward()
    assert_all_equal("used on rank 0 only", gradients(ddp), gradients(alone), cfg.tolerance)
    print_on_rank_0("find_unused_parameters: used on rank 0 only, all ranks get its gradient, divided by all")

    ddp = DistributedDataParallel(build(group), static_graph=True)
    loss_of(ddp, False, group.rank, group).backward()
    loss = loss_of(ddp, True, group.rank, group)
    expect_error(CHANGED, loss.backward)
    print_on_rank_0("static_graph: used in the second step only, which raises")


def accumulate(ddp: nn.Module, way: str, k: int, group: Group) -> None:
    """The gradient of ``k`` micro-batches; ``way`` says what stands inside ``no_sync``."""
    for micro in range(k):
        sync = way == "synchronized" or micro == k - 1
        forward_inside = not sync and way == "no_sync"
        with ddp.no_sync() if forward_inside else nullcontext():
            loss = loss_of(ddp, True, group.rank * k + micro, group) / k
        with nullcontext() if sync else ddp.no_sync():
            loss.backward()


def accumulation(cfg: Config, group: Group) -> dict[str, list[int]]:
    """8 micro-batches, one gradient. {way: bytes of each all-reduce}."""
    k = cfg.micro_batches
    n = group.world_size
    alone = build(group)
    for part in range(k * n):
        (loss_of(alone, True, part, group) / (k * n)).backward()
    found = {}
    for way in ("synchronized", "no_sync", "no_sync, forward outside"):
        ddp = DistributedDataParallel(build(group))
        with record() as log:
            accumulate(ddp, way, k, group)
        found[way] = sorted((call.bytes for call in log.of("all_reduce")), reverse=True)
        assert_all_equal(way, gradients(ddp), gradients(alone), cfg.tolerance)
        print_on_rank_0(f"{way:26}{len(found[way])} all-reduces, {sum(found[way]):,} bytes")
    counts = [len(calls) for calls in found.values()]
    if counts != [k, 1, k]:
        raise CourseError(f"all-reduces by way: {counts}, expected {[k, 1, k]}")
    return found


def main(cfg: Config) -> None:
    with process_group(timeout_s=20) as group:
        check_error(group)
        by_cure = unused(cfg, group)
        in_turns(cfg, group)
        record_results("lab_12_unused", {"unused": by_cure, "accumulation": accumulation(cfg, group)})


if __name__ == "__main__":
    run(main, Config())
