"""Training in one process, step by step, and the comparison of a strategy with it. Taught in lesson 16."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from shared.runtime.errors import ParityError
from shared.training.parity import assert_equal

# From the name and the whole tensor of one process to the part that this rank holds; None: it holds nothing.
PartOf = Callable[[str, torch.Tensor], torch.Tensor | None]


@dataclass
class Step:
    """What one optimizer step leaves behind. ``loss`` is the mean over the whole batch, before the step."""

    loss: torch.Tensor
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    parameters: dict[str, torch.Tensor] = field(default_factory=dict)


class PlainSGD:
    """SGD without momentum, equal to ``torch.optim.SGD`` to the last bit. Taught in lesson 06.

    torch's optimizers import its compiler before their first step: about 2 s of CPU on each rank.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        self.parameters = list(parameters)
        self.lr = lr

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.add_(parameter.grad, alpha=-self.lr)


def step_of(loss: torch.Tensor, named: Iterable[tuple[str, nn.Parameter]]) -> Step:
    """Copies of all that is compared, to be taken after the optimizer's step and before ``zero_grad``."""
    step = Step(loss.detach().clone())
    for name, parameter in named:
        if parameter.grad is not None:
            step.gradients[name] = parameter.grad.detach().clone()
        step.parameters[name] = parameter.detach().clone()
    return step


def train_steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | PlainSGD,
    loss_of: Callable[[Any, int], torch.Tensor],
    steps: int,
    after_backward: Callable[[nn.Module, torch.Tensor], None] | None = None,
) -> list[Step]:
    """The one loop of all strategies, and of the one process that they are held against.

    Args:
        loss_of: (model, step) to the loss: of the whole batch in one process, of a rank's part on ranks.
        after_backward: gets the model and a copy of the loss. On ranks that have parts of the batch it makes
            gradients and loss, in place, those of the whole batch.
    """
    done = []
    for number in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, number)
        loss.backward()
        loss = loss.detach().clone()
        if after_backward is not None:
            after_backward(model, loss)
        optimizer.step()
        done.append(step_of(loss, model.named_parameters()))
    return done


def whole(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """For a rank that holds everything."""
    return tensor


def assert_same_training(
    what: str, ours: list[Step], alone: list[Step], tolerance: float, part_of: PartOf = whole
) -> float:
    """Compare loss, every gradient and every parameter after each step; return the largest difference.

    Args:
        part_of: which part of the whole tensor this rank holds, such as ``tensor.chunk(n)[rank]``.

    Raises:
        ParityError: a value differs by more than ``tolerance``; a tensor that this rank should hold is
            missing, or one that it should not hold is there; the numbers of steps differ.
    """
    if len(ours) != len(alone) or not ours:
        raise ParityError(f"{what}: {len(ours)} steps, one process did {len(alone)}")
    largest = 0.0
    for number, (mine, truth) in enumerate(zip(ours, alone, strict=True)):
        where = f"{what}, step {number}"
        largest = max(largest, assert_equal(f"{where}: loss", mine.loss, truth.loss, tolerance))
        kinds = {
            "gradient of": (mine.gradients, truth.gradients),
            "parameter": (mine.parameters, truth.parameters),
        }
        for kind, (held, all_of_it) in kinds.items():
            expected = _parts(all_of_it, part_of)
            wrong = sorted(held.keys() ^ expected.keys())
            if wrong:
                has = "is missing" if wrong[0] in expected else "should not be here"
                raise ParityError(f"{where}: {kind} {wrong[0]} {has}")
            for name, tensor in held.items():
                largest = max(
                    largest, assert_equal(f"{where}: {kind} {name}", tensor, expected[name], tolerance)
                )
    return largest


def _parts(tensors: dict[str, torch.Tensor], part_of: PartOf) -> dict[str, torch.Tensor]:
    parts = {}
    for name, tensor in tensors.items():
        part = part_of(name, tensor)
        if part is not None:
            parts[name] = part
    return parts
