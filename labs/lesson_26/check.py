"""Check of exercise 26. Run it: torchrun --standalone --nproc-per-node=2 CHECK.py"""

import copy
import inspect
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType

import torch
import torch._dynamo  # the first optimizer would do it, in seconds that a collective may not have
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shared.runtime import exercises
from shared.runtime.errors import ParityError, waited_in_vain
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group
from shared.training.parity import assert_same_on_every_rank, parameters

TOLERANCE = 1e-12


class Meeting:
    """Calls a function on all ranks, and notices when it returns on some of them only."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout = timedelta(seconds=timeout_s)
        self.group = dist.new_group(backend="gloo", timeout=self.timeout)
        dist.barrier(group=self.group)  # nobody leaves while another one connects

    def call(self, function: Callable, *args) -> object:
        name = function.__name__
        try:
            result = function(*args)
        except RuntimeError as error:
            first_line = str(error).splitlines()[0]
            if waited_in_vain(first_line):
                raise Wrong(f"{name} hangs: this rank waits for another one") from None
            raise Wrong(f"{name} fails: {first_line}") from None
        try:
            dist.monitored_barrier(self.group, self.timeout)
        except RuntimeError:
            raise Wrong(f"{name} hangs: it has returned here, another rank is still in it") from None
        return result


def check_mean_loss(answer: ModuleType, meeting: Meeting, group: Group) -> None:
    """Rank 0's loss moves, those of the others do not."""
    others = [3.0 + rank for rank in range(1, group.world_size)]
    for step in range(2):
        of_rank_0 = 1.0 + step
        loss = meeting.call(answer.mean_loss, of_rank_0 if group.rank == 0 else 3.0 + group.rank)
        mean = (of_rank_0 + sum(others)) / group.world_size
        if abs(loss - mean) > TOLERANCE:
            raise Wrong(f"mean_loss returns {loss} in step {step + 1}, expected {mean}")


def check_mean_metrics(answer: ModuleType, meeting: Meeting, group: Group) -> None:
    samples = 2 + 3 * group.rank
    sums = {"loss": 10.0 + group.rank, "hits": 1.0 * group.rank, "tokens": 100.0}
    if group.rank % 2:
        sums = dict(reversed(sums.items()))
    given = dict(sums)
    metrics = meeting.call(answer.mean_metrics, sums, samples)
    if sums != given:
        raise Wrong("mean_metrics changes the dictionary that it was given")
    everyone = range(group.world_size)
    seen = sum(2 + 3 * rank for rank in everyone)
    totals = {"loss": sum(10.0 + rank for rank in everyone), "hits": float(sum(everyone))}
    totals["tokens"] = 100.0 * group.world_size
    means_of_tokens = sum(100.0 / (2 + 3 * rank) for rank in everyone) / group.world_size
    if group.world_size > 1 and abs(metrics.get("tokens", 0.0) - means_of_tokens) < TOLERANCE:
        raise Wrong("mean_metrics returns the mean of the ranks' means, but the ranks have unequal samples")
    if not set(metrics) <= set(totals):
        raise Wrong(f"mean_metrics returns {sorted(set(metrics) - set(totals))}, which nobody has asked for")
    for name, total in totals.items():
        if name not in metrics or abs(metrics[name] - total / seen) > TOLERANCE:
            raise Wrong(f"mean_metrics: {name} is {metrics.get(name)}, expected {total / seen}")


def classifier(group: Group) -> DistributedDataParallel:
    torch.manual_seed(26)
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).to(group.device)
    ddp = DistributedDataParallel(model)
    torch.manual_seed(group.rank)  # running statistics differ from rank to rank, as in a training
    for _ in range(2):
        ddp(torch.randn(8, 4, device=group.device)).sum().backward()
    return ddp


def check_accuracy(answer: ModuleType, meeting: Meeting, group: Group) -> None:
    ddp = classifier(group)
    sizes = [3 + 4 * rank for rank in range(group.world_size)]
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(sum(sizes), 4, generator=generator).to(group.device)
    y = torch.randint(3, (sum(sizes),), generator=generator).to(group.device)
    own = slice(sum(sizes[: group.rank]), sum(sizes[: group.rank + 1]))
    alone = copy.deepcopy(ddp.module).eval()
    hits = (alone(x[own]).argmax(1) == y[own]).sum()
    dist.all_reduce(hits)
    expected = hits.item() / sum(sizes)
    buffers = [buffer.clone() for buffer in ddp.buffers()]
    accuracy = meeting.call(answer.accuracy, ddp, x[own], y[own])
    changed = [not torch.equal(a, b) for a, b in zip(buffers, ddp.buffers(), strict=True)]
    changes = torch.tensor(sum(changed), device=group.device)
    dist.all_reduce(changes)
    if changes:
        raise Wrong(
            "accuracy changes the buffers of a rank: a forward of DDP copies those of rank 0, and BatchNorm "
            "in training mode updates its own"
        )
    if abs(accuracy - expected) > 1e-6:
        raise Wrong(f"accuracy returns {accuracy:.4f}, expected {expected:.4f}")
    if not ddp.training:
        raise Wrong("accuracy leaves the model in evaluation mode")


def after_three_steps(model: nn.Module, batches: list, group: Group) -> nn.Module:
    """One process makes the steps on the batches that are good on all ranks: numbers 0, 2 and 4."""
    alone = copy.deepcopy(model)
    optimizer = torch.optim.SGD(alone.parameters(), 0.1)
    for number in (0, 2, 4):
        x, y = ([torch.empty_like(part) for _ in range(group.world_size)] for part in batches[number])
        for parts, part in zip((x, y), batches[number], strict=True):
            dist.all_gather(parts, part)
        optimizer.zero_grad()
        nn.functional.mse_loss(alone(torch.cat(x)), torch.cat(y)).backward()
        optimizer.step()
    return alone


def check_train(answer: ModuleType, meeting: Meeting, group: Group) -> None:
    """Rank r has 6 + r batches. Bad losses: the second and sixth of rank 0, the fourth of the last rank."""
    last = group.world_size - 1
    generator = torch.Generator().manual_seed(group.rank)
    batches = []
    for number in range(6 + group.rank):
        x = torch.randn(4, 2, generator=generator)
        y = torch.randn(4, 1, generator=generator)
        if (group.rank, number) in ((0, 1), (last, 3), (0, 5)):
            y[0] = torch.nan
        batches.append((x.to(group.device), y.to(group.device)))
    torch.manual_seed(26)
    ddp = DistributedDataParallel(nn.Linear(2, 1).to(group.device))
    before = [p.detach().clone() for p in ddp.parameters()]
    alone = after_three_steps(ddp.module, batches, group)
    steps = meeting.call(answer.train, ddp, torch.optim.SGD(ddp.parameters(), 0.1), batches)
    if not all(p.isfinite().all() for p in ddp.parameters()):
        raise Wrong("train: the parameters are no numbers any more")
    if steps != 3:
        raise Wrong(
            f"train returns {steps}, but 3 of the 6 batches that all ranks have are good on all ranks"
        )
    if all(torch.equal(p, old) for p, old in zip(ddp.parameters(), before, strict=True)):
        raise Wrong("train leaves the parameters as they were")
    for p, expected in zip(ddp.parameters(), alone.parameters(), strict=True):
        if not torch.allclose(p, expected, atol=1e-5):
            raise Wrong("train: the parameters are not those of three steps on all ranks' good batches")
    try:
        assert_same_on_every_rank("parameter", parameters(ddp.module))
    except ParityError as error:
        raise Wrong(f"train: {error}") from None


def verify(answer: ModuleType, group: Group) -> str:
    lines = [line.strip() for line in inspect.getsource(answer).splitlines()]
    if any(line.startswith("raise NotImplementedError") for line in lines):
        raise NotImplementedError  # before any rank waits for another
    meeting = Meeting(exercises.TIMEOUT_S)
    check_mean_loss(answer, meeting, group)
    check_mean_metrics(answer, meeting, group)
    check_accuracy(answer, meeting, group)
    check_train(answer, meeting, group)
    return f"four functions, mended, on {group.world_size} ranks. Well done."


if __name__ == "__main__":
    check_exercise("26_mend_four", verify, ranks=2)
