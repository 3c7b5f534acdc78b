"""What a DDP promises beside equal gradients on an easy net: order, waiting, buffers, groups. Lesson 09."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from shared.comm.late import late_all_reduces
from shared.runtime.errors import CourseError, ParityError
from shared.runtime.group import Group
from shared.training.parity import assert_all_equal, assert_same_on_every_rank, gradients

SEED = 100
STEPS = 4
LEARNING_RATE = 0.1
Wrap = Callable[[nn.Module, dist.ProcessGroup | None], nn.Module]


class CrossedNet(nn.Module):
    """Float64, (batch, 8) to (batch, 8). Two equal layers change places, one is left out, on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.left = nn.Linear(8, 8)
        self.right = nn.Linear(8, 8)
        self.extra = nn.Linear(8, 8)
        self.last = nn.Linear(8, 8)
        self.double()

    def forward(self, x: torch.Tensor, crossed: bool = False, extra: bool = True) -> torch.Tensor:
        x = self.norm(self.first(x))
        before, after = (self.right, self.left) if crossed else (self.left, self.right)
        x = torch.tanh(after(torch.tanh(before(x))))
        return self.last(x + self.extra(x) if extra else x)


def two_halves(group: Group) -> dist.ProcessGroup:
    """The half of the ranks that this one belongs to. Collective."""
    middle = max(1, group.world_size // 2)
    halves = [range(middle), range(middle, group.world_size)]
    made = [dist.new_group(list(ranks)) for ranks in halves if ranks]
    mine = made[0] if group.rank < middle else made[1]
    assert isinstance(mine, dist.ProcessGroup)
    return mine


def train_crossed(wrap: Wrap, group: Group, members: dist.ProcessGroup | None, tolerance: float) -> float:
    """Train a wrapped ``CrossedNet`` beside one process; all-reduces deliver where they are waited for.

    Odd ranks use two equal layers in the other order. Returns the largest difference of a gradient.

    Raises:
        ParityError: a gradient is not the mean over ``members``, or a forward did not begin with the buffers
            of their first rank.
    """
    ranks = dist.get_process_group_ranks(members or dist.group.WORLD)
    torch.manual_seed(SEED + group.rank)
    ours = CrossedNet().to(group.device)
    torch.manual_seed(SEED + ranks[0])
    alone = CrossedNet().to(group.device)
    ddp = wrap(ours, members)
    began_with: list[torch.Tensor] = []
    ours.norm.register_forward_pre_hook(lambda norm, _: began_with.append(norm.running_mean.clone()))
    generator = torch.Generator().manual_seed(0)
    kept = []
    largest = 0.0
    for step in range(STEPS):
        x = torch.randn(group.world_size, 6, 8, dtype=torch.float64, generator=generator).to(group.device)
        ours.zero_grad()
        alone.zero_grad()
        with late_all_reduces() as works:
            kept.append(works)  # gloo may still write into what a faulty wrapper does not wait for
            ddp(x[group.rank], group.rank % 2 == 1).square().mean().backward()
        losses = [alone(x[rank], rank % 2 == 1).square().mean() for rank in ranks]
        torch.stack(losses).mean().backward()
        what = f"crossed layers, step {step}: gradient"
        largest = max(largest, assert_all_equal(what, gradients(ours), gradients(alone), tolerance))
        with torch.no_grad():
            for parameter in [*ours.parameters(), *alone.parameters()]:
                assert parameter.grad is not None
                parameter.add_(parameter.grad, alpha=-LEARNING_RATE)
    for step, buffer in enumerate(began_with):
        of_first = buffer.clone()
        dist.broadcast(of_first, group=members, group_src=0)
        if not torch.equal(of_first, buffer):
            raise ParityError(f"crossed layers, step {step}: a forward began with buffers of its own")
    return largest


def assert_unused_is_refused(wrap: Wrap, group: Group) -> None:
    """A backward that leaves a parameter out must raise, in the first step and in a later one. Collective."""
    for used_before in (0, 2):
        ddp = wrap(CrossedNet().to(group.device), None)
        x = torch.ones(2, 8, dtype=torch.float64, device=group.device)
        for _ in range(used_before):
            ddp(x).sum().backward()
        try:
            ddp(x, extra=False).sum().backward()
        except RuntimeError as error:
            if "got no gradient" not in str(error):
                raise
        else:
            raise CourseError(
                f"after {used_before} backwards, one that left a parameter out ended without an error"
            )
        ddp.zero_grad()
        ddp(x * group.rank).sum().backward()
        assert_same_on_every_rank("after a refused backward", gradients(ddp))


def keeps_its_promises(wrap: Wrap, group: Group, tolerance: float) -> float:
    """``wrap(net, members)`` over all ranks and over two halves; parameters left out. Collective."""
    largest = train_crossed(wrap, group, None, tolerance)
    largest = max(largest, train_crossed(wrap, group, two_halves(group), tolerance))
    assert_unused_is_refused(wrap, group)
    return largest
