"""Check of exercise 06. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py"""

from types import ModuleType

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from shared.comm.record import record
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group
from shared.training.data import load_images

TOLERANCE = 1e-12  # float64


def shares(group: Group) -> dict[str, list[int]]:
    """{case: images on each rank}; the last case has a rank without images."""
    n = group.world_size
    return {
        "equal shares": [12] * n,
        "unequal shares": [8 * (rank + 1) for rank in range(n)],
        "an idle rank": [20 * (rank + 1) for rank in range(n - 1)] + [0 if n > 1 else 20],
    }


def build(group: Group) -> nn.Module:
    """The same small network on each rank."""
    torch.manual_seed(0)
    return (
        nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10)).double().to(group.device)
    )


def check_case(answer: ModuleType, case: str, counts: list[int], group: Group) -> None:
    """One case on all ranks; raises ``Wrong`` on those where the gradients or the calls are not right."""
    data, images = load_images("digits"), counts[group.rank]
    x, y = data.train_x.double().to(group.device), data.train_y.to(group.device)
    model, alone = build(group), build(group)
    F.cross_entropy(alone(x[: sum(counts)]), y[: sum(counts)]).backward()
    if images:
        mine = slice(sum(counts[: group.rank]), sum(counts[: group.rank + 1]))
        F.cross_entropy(model(x[mine]), y[mine]).backward()
    before = [parameter.detach().clone() for parameter in model.parameters()]

    with record() as log:
        answer.average_uneven(model, images)

    if not log.calls:
        raise Wrong(f"{case}: the rank with {images} images calls no collective, and the others wait for it")
    for (name, parameter), old in zip(model.named_parameters(), before, strict=True):
        truth = alone.get_parameter(name).grad
        if not torch.equal(parameter, old):
            raise Wrong(f"{case}: parameter {name} was changed; only its gradient is to be")
        if parameter.grad is None:
            raise Wrong(f"{case}: parameter {name} still has no gradient on the rank with {images} images")
        if parameter.grad.shape != truth.shape:
            shape, wanted = tuple(parameter.grad.shape), tuple(truth.shape)
            raise Wrong(f"{case}: the gradient of {name} is {shape}, expected {wanted}")
        off = ((parameter.grad - truth).norm() / truth.norm()).item()
        if not off <= TOLERANCE:
            ratio = ((parameter.grad * truth).sum() / truth.square().sum()).item()
            if ((parameter.grad - ratio * truth).norm() / truth.norm()).item() <= TOLERANCE:
                raise Wrong(f"{case}: the gradient of {name} is {ratio:.3f} times that of one process")
            raise Wrong(f"{case}: the gradient of {name} is off by {off:.1%}")
    made = log.counts()
    if made != {"all_reduce": 1}:
        counted = ", ".join(f"{count} x {name}" for name, count in sorted(made.items()))
        raise Wrong(f"the gradients are right, but took {counted}; the target is 1 x all_reduce")


def verify(answer: ModuleType, group: Group) -> str:
    for case, counts in shares(group).items():
        check_case(answer, case, counts, group)
        dist.barrier()
    cases = ", ".join(shares(group))
    return f"{cases}: the gradients of one process on {group.world_size} rank(s), by 1 all-reduce. Well done."


if __name__ == "__main__":
    check_exercise("06_uneven_average", verify)
