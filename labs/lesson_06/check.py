"""Check of exercise 06. Run it: torchrun --standalone --nproc-per-node=3 CHECK.py"""

from types import ModuleType

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from shared.comm.record import CommRecord, record
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group
from shared.training.data import load_images

TOLERANCE = 1e-12  # float64, relative


class Net(nn.Module):
    """Digits (batch, 1, 8, 8) to scores (batch, 10), with a frozen layer and a weight that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(64, 16).requires_grad_(False)
        self.first = nn.Linear(16, 16)
        self.second = nn.Linear(16, 16)
        self.second.weight = self.first.weight  # tied
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.frozen(x.flatten(1)))
        x = torch.tanh(self.second(torch.tanh(self.first(x))))
        return self.head(x)


def shares(group: Group) -> dict[str, list[int]]:
    """{case: images on each rank}; in two cases a rank has no images, first the last, then rank 0."""
    n = group.world_size
    unequal = [8 * (rank + 1) for rank in range(n)]
    idle_last = [20 * (rank + 1) for rank in range(n - 1)] + [0]
    if n == 1:
        idle_last = [20]
    return {
        "equal shares": [12] * n,
        "unequal shares": unequal,
        "an idle rank": idle_last,
        "another idle rank": idle_last[::-1],
    }


def batch(counts: list[int], first: int, group: Group) -> tuple[torch.Tensor, torch.Tensor, slice]:
    """The joined batch: images, labels, and the part of it that this rank has."""
    data = load_images("digits")
    joined = slice(first, first + sum(counts))
    begin = sum(counts[: group.rank])
    mine = slice(begin, begin + counts[group.rank])
    return data.train_x[joined].double().to(group.device), data.train_y[joined].to(group.device), mine


def build(group: Group, frozen: tuple[str, ...] = ()) -> nn.Module:
    """The same small network on each rank; the layers ``frozen`` do not learn either."""
    torch.manual_seed(0)
    net = Net().double().to(group.device)
    for name in frozen:
        net.get_submodule(name).requires_grad_(False)
    return net


def relative_error(found: torch.Tensor, truth: torch.Tensor) -> float:
    return ((found - truth).norm() / truth.norm()).item()


def check_values(what: str, found: torch.Tensor | None, truth: torch.Tensor) -> None:
    """Raises ``Wrong``, in words that name the mistake where it shows in the numbers."""
    if found is None:
        raise Wrong(f"{what} is still None")
    if found.shape != truth.shape:
        raise Wrong(f"{what} has the shape {tuple(found.shape)}, expected {tuple(truth.shape)}")
    if found.dtype != truth.dtype:
        raise Wrong(f"{what} is {found.dtype}, expected {truth.dtype}")
    if not torch.isfinite(found).all():
        raise Wrong(f"{what} holds a value that is not finite")
    off = relative_error(found, truth)
    if off <= TOLERANCE:
        return
    ratio = ((found * truth).sum() / truth.square().sum()).item()
    if relative_error(found, ratio * truth) <= TOLERANCE:
        raise Wrong(f"{what} is {ratio:.3f} times that of one process")
    hint = "; did float32 come in between?" if off < 1e-6 else ""
    raise Wrong(f"{what} ({found.dtype}) is off by {off:.1e} of its size, allowed is {TOLERANCE:.0e}{hint}")


def check_calls(where: str, log: CommRecord) -> None:
    made = log.counts()
    if made != {"all_reduce": 1}:
        counted = ", ".join(f"{count} x {name}" for name, count in sorted(made.items()))
        raise Wrong(f"{where}: the values are right, but took {counted}; the target is 1 x all_reduce")


def check_frozen(where: str, model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad and parameter.grad is not None:
            raise Wrong(
                f"{where}: {name} is frozen (requires_grad=False), but it got a gradient; "
                "an optimizer with weight decay would now change it"
            )


def check_average(
    answer: ModuleType, case: str, counts: list[int], group: Group, frozen: tuple[str, ...] = ()
) -> None:
    """``average_gradients`` alone, once."""
    images = counts[group.rank]
    where = f"average_gradients, {case}"
    x, y, mine = batch(counts, 0, group)
    model, alone = build(group, frozen), build(group, frozen)
    F.cross_entropy(alone(x), y).backward()
    if images:
        F.cross_entropy(model(x[mine]), y[mine]).backward()
    before = [parameter.detach().clone() for parameter in model.parameters()]

    with record() as log:
        try:
            answer.average_gradients(model, images)
        except (AttributeError, TypeError) as error:
            if "NoneType" not in str(error):
                raise
            raise Wrong(f"{where}: a gradient is None on the rank with {images} images: {error}") from None
    if not log.calls:
        raise Wrong(f"{where}: the rank with {images} images calls no collective, and the others wait for it")

    check_frozen(where, model)
    for (name, parameter), old in zip(model.named_parameters(), before, strict=True):
        if not torch.equal(parameter, old):
            raise Wrong(f"{where}: parameter {name} was changed, only its gradient should be")
        if parameter.requires_grad:
            what = f"{where}, on the rank with {images} images: the gradient of {name}"
            check_values(what, parameter.grad, alone.get_parameter(name).grad)
    check_calls(where, log)


def check_training(answer: ModuleType, group: Group) -> int:
    """``train_step``, several times in a row beside one process. Returns the number of steps."""
    model, alone = build(group), build(group)
    optimizer, alone_optimizer = [
        torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9, weight_decay=1e-2) for net in (model, alone)
    ]
    first = 0
    cases = shares(group)
    for step, (case, counts) in enumerate(cases.items()):
        x, y, mine = batch(counts, first, group)
        first += sum(counts)
        alone_optimizer.zero_grad()
        F.cross_entropy(alone(x), y).backward()
        alone_optimizer.step()

        where = f"train_step, step {step} ({case})"
        with record() as log:
            answer.train_step(model, optimizer, x[mine], y[mine])
        if not log.calls:
            images = counts[group.rank]
            raise Wrong(f"{where}: the rank with {images} images calls no collective")
        check_frozen(where, model)
        for name, parameter in model.named_parameters():
            what = f"{where}, on the rank with {counts[group.rank]} images: parameter {name}"
            check_values(what, parameter.detach(), alone.get_parameter(name).detach())
        check_calls(where, log)
        dist.barrier()
    return len(cases)


def verify(answer: ModuleType, group: Group) -> str:
    cases = shares(group)
    for case, counts in cases.items():
        check_average(answer, case, counts, group)
        dist.barrier()
    check_average(answer, "another frozen layer", cases["unequal shares"], group, frozen=("head",))
    dist.barrier()
    try:
        steps = check_training(answer, group)
    except NotImplementedError:
        raise Wrong("average_gradients is right; train_step is not written yet") from None
    return (
        f"{', '.join(cases)}: gradients, and parameters after each of {steps} steps, are those of one process"
        f" on {group.world_size} rank(s), by 1 all-reduce a step. Well done."
    )


if __name__ == "__main__":
    check_exercise("06_uneven_average", verify, ranks=3)
