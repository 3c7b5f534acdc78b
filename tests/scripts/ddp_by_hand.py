"""Exercise 09's solution in place of torch's DDP, as somebody else would use it."""

import contextlib
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shared.comm.paced import Wire, on_wire
from shared.lesson_09.ddp_ways import from_lab
from shared.lesson_09.overlap import assert_overlap
from shared.runtime.group import Group, process_group
from shared.runtime.loading import load_file
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import ROOT
from shared.runtime.run import run
from shared.training.side_by_side import train_side_by_side

Naive = from_lab("naive", "NaiveDDP")
Flat = from_lab("flat", "FlatDDP")
Simple = from_lab("overlapped", "OverlappedDDP")
SOLUTION = ROOT / "labs" / "exercises" / "09_overlapped_ddp" / "solution.py"
Overlapped = load_file(SOLUTION, "solution_09").OverlappedDDP

PATIENCE_S = 15  # less than the timeout of the group


class Net(nn.Module):
    """Batch norm, tied, frozen, conditional and never used layers; returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.a, self.b, self.c = nn.Linear(256, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.c.weight = self.b.weight
        self.frozen, self.never = nn.Linear(16, 16).requires_grad_(False), nn.Linear(3, 3)
        self.sometimes = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, sometimes: bool) -> dict[str, torch.Tensor]:
        x = self.a(torch.relu(self.norm(self.conv(x))).flatten(1))
        x = self.frozen(self.c(torch.tanh(self.b(x))))
        return {"out": self.sometimes(x) + x if sometimes else x}


def same_as_ddp(group: Group, cap: float | None, to_none: bool) -> None:
    """Nine steps, some without clearing gradients, some of three parts of which two do not communicate.

    In some, a forward without gradients stands between forward and backward.
    """
    torch.manual_seed(group.rank)
    net = Net().double()
    ours = Overlapped(copy.deepcopy(net), bucket_cap_mb=cap)
    theirs = DistributedDataParallel(net, bucket_cap_mb=cap, find_unused_parameters=True)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    optimizers = [torch.optim.SGD(ddp.parameters(), 0.1, momentum=0.9) for ddp in (ours, theirs)]
    for step in range(9):
        if step % 4 != 3:
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=to_none)
        parts = 3 if step in (4, 5) else 1
        for part in range(parts):
            x = torch.randn(6, 1, 8, 8, dtype=torch.float64)
            sometimes = (False, group.rank == 0, True, group.rank == group.world_size - 1)[(step + part) % 4]
            for ddp in (ours, theirs):
                with ddp.no_sync() if part < parts - 1 else contextlib.nullcontext():
                    loss = ddp(x, sometimes)["out"].square().mean()
                    if step % 2:
                        with torch.no_grad():
                            ddp(x, sometimes)
                    loss.backward()
        for (name, p), (_, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None), (step, name)
            assert p.grad is None or (p.grad - q.grad).abs().max() < 1e-12, (step, name)
        for optimizer in optimizers:
            optimizer.step()
        for (name, p), q in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
            assert (p - q).abs().max() < 1e-12, (step, name)


def main() -> None:
    with process_group(timeout_s=60) as group:
        for wrap in (Naive, Flat, Overlapped, lambda net: Overlapped(net, 1e-6)):
            train_side_by_side(wrap, group)
        train_side_by_side(Simple, group, unused=False)
        for cap, to_none in ((None, True), (0.001, False), (0.002, True)):
            same_as_ddp(group, cap, to_none)
            print_on_rank_0(f"same as DDP with bucket_cap_mb {cap}")
        for right in (Simple, Overlapped):
            assert_overlap(right, group, PATIENCE_S)
        x = torch.ones(4)
        with on_wire(Wire()) as wire:
            dist.all_reduce(x)
            dist.all_reduce(x, async_op=True).wait()
        assert [sending.bytes for sending in wire.log] == [16, 16] and x.tolist() == [group.world_size**2] * 4
        assert len(wire.waits) == 2
        assert dist.all_reduce(x) is None and len(wire.log) == 2


if __name__ == "__main__":
    run(main)
