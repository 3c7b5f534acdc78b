"""Check of exercise 15. Run it: torchrun --standalone --nproc-per-node=3 CHECK.py"""

from types import ModuleType

import torch
import torch.nn.functional as F
from torch import nn

from shared.comm.record import record
from shared.runtime.exercises import Wrong, check_exercise
from shared.runtime.group import Group

ROWS = 6
WIDTH = 8
STEPS = 3
TOLERANCE = 1e-12  # float64


class Stage(nn.Module):
    """Two blocks that read ``x`` and ``x0``, (rows, width). The first stage has the embedding before them."""

    def __init__(self, number: int) -> None:
        super().__init__()
        torch.manual_seed(number)
        self.embed = nn.Linear(WIDTH, WIDTH) if number == 0 else None
        self.blocks = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: torch.Tensor, x0: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        if self.embed is not None:
            x = x0 = torch.tanh(self.embed(x))
        for block in self.blocks:
            x = torch.tanh(block(torch.cat([x, x0], dim=1)))
        return x, x0


def loss_of(stages: list[Stage], inputs: torch.Tensor, labels: torch.Tensor, cut: int = -1) -> torch.Tensor:
    """One process goes through all stages. No gradient of ``x0`` comes back from stage ``cut`` and later."""
    x, x0 = inputs, None
    for number, stage in enumerate(stages):
        x, x0 = stage(x, x0.detach() if number == cut else x0)
    return F.cross_entropy(x, labels)


def gradients_of(stages: list[Stage], rank: int, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """What a backward of ``loss`` gives the parameters of one rank's stage."""
    named = dict(stages[rank].named_parameters())
    found = torch.autograd.grad(loss, list(named.values()))
    return dict(zip(named, found, strict=True))


def equal(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return torch.allclose(ours, theirs, rtol=0, atol=TOLERANCE)


def compare(step: int, mine: Stage, stages: list[Stage], inputs, labels, group: Group) -> None:
    """Raise ``Wrong`` unless the gradients are those of one process; say which mistake has led to them."""
    expected = gradients_of(stages, group.rank, loss_of(stages, inputs, labels))
    guesses = {
        f"is {group.world_size} times too small: nothing is to be averaged here": {
            name: gradient / group.world_size for name, gradient in expected.items()
        }
    }
    for cut in range(group.rank + 1, group.world_size):
        behind = f"rank {cut} and those behind it" if cut < group.world_size - 1 else f"rank {cut}"
        loss = loss_of(stages, inputs, labels, cut)
        guesses[f"lacks the gradient of x0 from {behind}"] = gradients_of(stages, group.rank, loss)
    for name, p in mine.named_parameters():
        if p.grad is None:
            raise Wrong(f"step {step}: {name} has no gradient: no backward has reached this rank's stage")
        if equal(p.grad, expected[name]):
            continue
        for guess, wrong in guesses.items():
            if equal(p.grad, wrong[name]):
                raise Wrong(f"step {step}: the gradient of {name} {guess}")
        off = (p.grad - expected[name]).abs().max()
        raise Wrong(
            f"step {step}: the gradient of {name} is not that of one process: it is off by {off:.1e}; "
            "do the two gradients arrive in the order in which they are sent?"
        )


def verify(answer: ModuleType, group: Group) -> str:
    rank, ranks = group.rank, group.world_size
    stages = [Stage(number).double().to(group.device) for number in range(ranks)]
    mine = Stage(rank).double().to(group.device)
    like = torch.empty(ROWS, WIDTH, dtype=torch.float64, device=group.device)
    neighbours = (rank > 0) + (rank < ranks - 1)
    data = torch.Generator().manual_seed(0)
    for step in range(STEPS):
        inputs = torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=data).to(group.device)
        labels = torch.randint(WIDTH, (ROWS,), generator=data).to(group.device)
        mine.zero_grad()
        with record() as log:
            loss = answer.forward_backward(
                mine, inputs if rank == 0 else None, labels if rank == ranks - 1 else None, like
            )
        truth = loss_of(stages, inputs, labels)
        if rank == ranks - 1 and not equal(loss, truth):
            raise Wrong(
                f"step {step}: the loss is {loss:.4f}, that of one process {truth:.4f}; "
                "do x and x0 arrive in the order in which they are sent?"
            )
        compare(step, mine, stages, inputs, labels, group)
        others = set(log.counts()) - {"send", "recv"}
        if others:
            raise Wrong(f"step {step}: it calls {', '.join(sorted(others))}; send and recv are enough")
        if rank < ranks - 1 and loss != 0:
            raise Wrong(f"step {step}: it returns {loss!r} on rank {rank}, expected 0: the last has the loss")
        sent = log.bytes("send") if "send" in log.counts() else 0
        if sent != 2 * neighbours * like.nbytes:
            raise Wrong(f"step {step}: it sends {sent:,} bytes, expected {2 * neighbours * like.nbytes:,}")
    return (
        f"{ranks} stages: loss and gradients equal one process in {STEPS} steps; "
        f"rank 0 sends {sent:,} bytes in a step. Well done."
    )


if __name__ == "__main__":
    check_exercise("15_stage", verify, ranks=3)
