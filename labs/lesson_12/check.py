"""Check of exercise 12. Run it: torchrun --standalone --nproc-per-node=3 CHECK.py"""

from collections.abc import Iterator
from types import ModuleType

import torch._dynamo  # the first optimizer would do it, in seconds that a collective may not have
import torch.distributed as dist
from torch import nn

from shared.comm.same_calls import DifferentCalls, SameCalls
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group
from shared.training.data import load_images

TOLERANCE = 1e-12  # float64
LEARNING_RATE = 0.1
MOMENTUM = 0.9


def sizes_of(group: Group) -> dict[str, list[list[int]]]:
    """{case: for each rank the number of images in each of its batches}."""
    n = group.world_size
    first_is_longest = [[8 * (rank + 1)] * 2 + [5] for rank in range(n)]
    first_is_longest[0] = [8] * 5 + [5]
    last_is_empty = [[10, 7] * (rank + 1) for rank in range(n)]
    if n > 1:
        last_is_empty[-1] = []
    return {
        "equal streams": [[12, 12, 12]] * n,
        "one batch more by rank": [[12] * (3 + rank) for rank in range(n)],
        "uneven streams": first_is_longest,
        "an empty stream": last_is_empty,
    }


def build(group: Group) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The same small network on each rank, and its optimizer."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10)).double()
    net = net.to(group.device)
    return net, torch.optim.SGD(net.parameters(), LEARNING_RATE, momentum=MOMENTUM)


def streams(sizes: list[list[int]], group: Group) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """The batches of every rank; no image is used twice."""
    data = load_images("digits")
    flat = [size for own in sizes for size in own]
    x = data.train_x[: sum(flat)].double().to(group.device)
    y = data.train_y[: sum(flat)].to(group.device)
    parts = iter(zip(x.split(flat), y.split(flat), strict=True))
    return [[next(parts) for _ in own] for own in sizes]


def one_by_one(batches: list, done: list, case: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """A stream that notices when a batch is asked for before the step on the last one is done."""
    for number, batch in enumerate(batches):
        if len(done) != number:
            raise Wrong(
                f"{case}: batch {number} was asked for after {len(done)} steps; a stream is read one by one"
            )
        yield batch


def check_case(answer: ModuleType, case: str, sizes: list[list[int]], group: Group) -> int:
    """One case on all ranks. Returns the number of all-reduces; raises ``Wrong`` where it is not right."""
    loss_sum = nn.CrossEntropyLoss(reduction="sum")
    everyone = streams(sizes, group)
    longest = max(len(own) for own in sizes)

    alone, alone_optimizer = build(group)
    for step in range(longest):
        joined = [own[step] for own in everyone if step < len(own)]
        x = torch.cat([x for x, _ in joined])
        y = torch.cat([y for _, y in joined])
        alone_optimizer.zero_grad()
        (loss_sum(alone(x), y) / len(x)).backward()
        alone_optimizer.step()

    model, optimizer = build(group)
    done = []
    optimizer.register_step_post_hook(lambda *_: done.append(1))
    stream = one_by_one(everyone[group.rank], done, case)
    try:
        with SameCalls() as log:
            steps = answer.train_to_the_end(model, optimizer, loss_sum, stream)
    except DifferentCalls as error:
        raise Wrong(f"{case}: {error}; a rank without data has to answer each call of the others") from None

    own = len(sizes[group.rank])
    if steps != longest:
        raise Wrong(f"{case}: {steps} steps on the rank with {own} batches; the longest stream has {longest}")
    if len(done) != longest:
        raise Wrong(
            f"{case}: the optimizer made {len(done)} steps of {longest} on the rank with {own} batches"
        )
    for (name, parameter), (_, truth) in zip(model.named_parameters(), alone.named_parameters(), strict=True):
        off = (parameter - truth).abs().max().item()
        if not off <= TOLERANCE:
            precision = " (as if computed in float32)" if off < 1e-5 else ""
            raise Wrong(
                f"{case}: after training, parameter {name} ({parameter.dtype}) is off by {off:.1e} "
                f"from one process, allowed is {TOLERANCE:.0e}{precision}"
            )
    made = log.count("all_reduce")
    others = log.count() - made
    if made > 2 * (longest + 1) or others:
        raise Wrong(
            f"{case}: all is right, but {longest} steps took {made} all-reduces and {others} "
            f"other collectives; the target is {2 * (longest + 1)} and 0"
        )
    return made


def verify(answer: ModuleType, group: Group) -> str:
    report = []
    for case, sizes in sizes_of(group).items():
        calls = check_case(answer, case, sizes, group)
        dist.barrier()
        report.append(f"{case} {calls}")
    calls = ", ".join(report)
    return f"on {group.world_size} rank(s) the parameters of one process; all-reduces: {calls}. Well done."


if __name__ == "__main__":
    check_exercise("12_has_data", verify, ranks=3)
