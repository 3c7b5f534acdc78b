"""Check of exercise 18. Run it: torchrun --standalone --nproc-per-node=3 CHECK.py"""

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

from shared.comm.late import LateWork
from shared.comm.same_calls import DifferentCalls, SameCalls
from shared.runtime.errors import ParityError
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group
from shared.training.parity import assert_equal

ROUNDING = 1e-7  # of a parameter, after a sum of gradients in float32
TOLERANCE = 1e-12  # float64
UNEVEN = 1.1  # bytes of the fullest rank, as a multiple of an even share
TRAFFIC = 1.05  # bytes sent, as a multiple of DDP's
CASES = {
    "Adam": (torch.optim.Adam, {"lr": 0.01, "eps": 1e-3}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01, "eps": 1e-3, "weight_decay": 0.5}),
    "Adafactor": (torch.optim.Adafactor, {"lr": 0.05}),
}


CALLS = ("all_reduce", "reduce", "broadcast", "reduce_scatter_tensor", "all_gather_into_tensor")


@contextmanager
def late_calls() -> Iterator[list[LateWork]]:
    """What ``async_op=True`` launches delivers only where it is waited for, as on a slow network."""
    launched: list[LateWork] = []

    def late(call: Callable) -> Callable:
        def launch(tensor, *others, async_op=False, **options):
            if not async_op:
                return call(tensor, *others, **options)
            result = tensor.detach().clone()
            launched.append(LateWork(call(result, *others, async_op=True, **options), result, tensor))
            return launched[-1]

        return launch

    with ExitStack() as patches:
        for name in CALLS:
            patches.enter_context(patch.object(dist, name, late(getattr(dist, name))))
        yield launched


class Net(nn.Module):
    """(batch, 16) to (batch, 40): parameters of many sizes, some frozen, tied, used by one rank, or never."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(16, 24).requires_grad_(False)
        self.up = nn.ModuleList(nn.Linear(24, 4 * i) for i in range(1, 9))
        self.down = nn.ModuleList(nn.Linear(4 * i, 24) for i in range(1, 9))
        self.branch = nn.Linear(24, 24)
        self.spare = nn.Linear(24, 2)
        self.last = nn.Linear(24, 24)
        self.tied = nn.Linear(24, 24)
        self.tied.weight = self.last.weight
        self.head = nn.Linear(24, 40)  # the largest comes last: a partition in this order is uneven

    def forward(self, x: torch.Tensor, use_branch: bool) -> torch.Tensor:
        x = self.frozen(x)
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(torch.tanh(up(x)))
        if use_branch:
            x = x + torch.tanh(self.branch(x))
        return self.head(self.tied(torch.tanh(self.last(x))))


def loss_of(net: Net, rank: int, step: int, ranks: int) -> torch.Tensor:
    """The loss of a rank's own data. In each step another rank uses the branch."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(6, 16, dtype=torch.float64, generator=generator)
    x = x.to(next(net.parameters()).device)
    return net(x, use_branch=rank == step % ranks).square().mean()


def values(net: Net) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def stepped(before: Net, gradients: dict[str, torch.Tensor | None], case: str, factor: float) -> dict:
    """What the first step would make of ``before`` with these gradients, each times ``factor``."""
    net = copy.deepcopy(before)
    for name, p in net.named_parameters():
        if gradients[name] is not None:
            p.grad = gradients[name] * factor
    optimizer_class, options = CASES[case]
    optimizer_class([p for p in net.parameters() if p.requires_grad], **options).step()
    return values(net)


def gradients_of(net: Net) -> dict[str, torch.Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in net.named_parameters()}


def compare(what: str, net: Net, alone: Net, guesses: dict[str, dict[str, torch.Tensor]]) -> None:
    """Raise ``Wrong`` unless the parameters are equal. ``guesses``: {what was wrong: values it leads to}."""
    expected = values(alone)
    for name, value in values(net).items():
        try:
            assert_equal(name, value, expected[name], TOLERANCE)
        except ParityError as error:
            if name.startswith("spare"):
                raise Wrong(f"{what}: {name} has changed, though no rank used it: leave it alone") from None
            for guess, wrong in guesses.items():
                if value.dtype == wrong[name].dtype and torch.allclose(
                    value, wrong[name], rtol=0, atol=TOLERANCE
                ):
                    raise Wrong(f"{what}: {name} {guess}") from None
            if torch.allclose(value.double(), expected[name], rtol=0, atol=ROUNDING):
                raise Wrong(
                    f"{what}: {name} is right to float32 alone: reduce in the gradient's dtype"
                ) from None
            hint = "; is a parameter cut in pieces? It looks at whole matrices" if "Adafactor" in what else ""
            raise Wrong(f"{what}: {error}{hint}") from None


def guesses_of(before: Net, own: dict, mean: dict, case: str, ranks: int) -> dict[str, dict]:
    """Likely mistakes of a first step."""
    if ranks == 1:
        return {}
    by_users = {
        name: gradient * ranks if name.startswith("branch") else gradient for name, gradient in mean.items()
    }
    return {
        "still has its old value here: its owner has to send the new one": values(before),
        "was stepped with the mean over the ranks that used it: the others count as zeros": stepped(
            before, by_users, case, 1
        ),
        "was stepped with the sum of the gradients, not with their mean": stepped(before, mean, case, ranks),
        "was stepped with this rank's gradient, not with the mean over the ranks": stepped(
            before, own, case, 1
        ),
    }


def train(answer: ModuleType, case: str, group: Group) -> tuple[dict[str, int], float, nn.Module, object]:
    """Train beside one process; returns calls and bytes by rule of the first step, net and answer."""
    optimizer_class, options = CASES[case]
    torch.manual_seed(18)
    alone = Net().double().to(group.device)
    net = copy.deepcopy(alone)
    plain = optimizer_class([p for p in alone.parameters() if p.requires_grad], **options)
    ours = answer.ZeRO1(net.parameters(), optimizer_class, **options)
    calls, sent = {}, 0.0
    for step in range(4):
        before = copy.deepcopy(net)
        plain.zero_grad()
        ours.zero_grad()
        for part in range(2 if step == 2 else 1):  # once two backwards before the step
            losses = [loss_of(alone, rank, step + part, group.world_size) for rank in range(group.world_size)]
            (sum(losses) / group.world_size).backward()
            loss_of(net, group.rank, step + part, group.world_size).backward()
        own, mean = gradients_of(net), gradients_of(alone)
        plain.step()
        try:
            with SameCalls() as log, late_calls() as launched:
                ours.step()
        except DifferentCalls as error:
            raise Wrong(
                f"{case}, step {step}: {error}; all must make the same calls, used or not, whoever owns what"
            ) from None
        forgotten = sum(not work.delivered for work in launched)
        if forgotten:
            raise Wrong(f"{case}, step {step}: {forgotten} of {len(launched)} calls were never waited for")
        guesses = guesses_of(before, own, mean, case, group.world_size) if step == 0 else {}
        compare(f"{case}, step {step}", net, alone, guesses)
        if step == 0:
            calls, sent = dict(log.counts()), log.by_rule()
    return calls, sent, net, ours


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    tensors = [t for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t)]
    return sum(t.nbytes for t in tensors if t.dim() > 0)


def verify(answer: ModuleType, group: Group) -> str:
    n = group.world_size
    calls, sent, net, ours = train(answer, "Adam", group)
    size = sum(p.nbytes for p in net.parameters() if p.requires_grad)
    mine = torch.tensor([float(state_bytes(ours.optimizer)), sent], dtype=torch.float64, device=group.device)
    everyone = [torch.empty_like(mine) for _ in range(n)]
    dist.all_gather(everyone, mine)
    states = [int(rank[0]) for rank in everyone]
    share = 2 * size / n
    if max(states) > UNEVEN * share:
        fullest = states.index(max(states))
        divided = sum(states) <= 2 * size
        hint = "; in which order were the parameters given out?" if divided else ""
        raise Wrong(
            f"rank {fullest} keeps {max(states):,} bytes of Adam's state; an even share is {share:,.0f}, "
            f"allowed are {UNEVEN - 1:.0%} more{hint}"
        )
    ddp = 2 * (n - 1) / n * size
    sent = sum(float(rank[1]) for rank in everyone) / n
    if sent > TRAFFIC * ddp:
        raise Wrong(f"a step sends {sent:,.0f} bytes per rank; DDP's all-reduce sends {ddp:,.0f}")
    train(answer, "Adafactor", group)
    train(answer, "AdamW", group)
    made = ", ".join(f"{count} x {op}" for op, count in calls.items()) or "no call"
    return (
        "equal to one process with Adam, Adafactor and AdamW; the fullest rank keeps "
        f"{max(states) / (2 * size):.0%} of Adam's state; a step sends {sent:,.0f} bytes, {made}. Well done."
    )


if __name__ == "__main__":
    check_exercise("18_zero_1", verify, ranks=3)
