"""What a row of the table of lesson 22 is, and what it is built from. The rows: rows_*.py."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils.checkpoint import checkpoint

from shared.comm.broadcast import broadcast_from_rank_0
from shared.runtime.group import Group
from shared.training.gpt import GPT, GPTConfig, loss_sum, token_batch
from shared.training.one_process import PartOf, train_steps, whole
from shared.training.storages import GRADIENTS, OPTIMIZER, PARAMETERS

Sizes = dict[str, int]  # {dimension: its size}
Traffic = dict[tuple[str, str], tuple[int, int]]  # {(dimension, collective): (calls, bytes handed in)}
Named = Callable[[], Iterable[tuple[str, torch.Tensor]]]


@dataclass(frozen=True)
class Config:
    gpt: GPTConfig = field(default_factory=lambda: GPTConfig(context=32, width=64))
    rows: int = 8  # sequences in the batch, of all ranks together
    micro_batches: int = 8  # of a pipeline: of all dp groups together
    experts: int = 4  # in place of each MLP, in the rows below the line
    k: int = 2  # of them for each token
    steps: int = 3
    lr: float = 0.01
    # Some gradients are 0 but for rounding, such as those of the keys' biases. Adam divides by their size;
    # this keeps it from making a step of rounding errors.
    eps: float = 1e-4
    tolerance: float = 1e-12  # float64


class Truth:
    """A model and its training in one process, which a row is held against."""

    def __init__(self, make: Callable[[], GPT], group: Group, cfg: Config) -> None:
        self.make = make
        model = make()
        broadcast_from_rank_0(model.parameters())  # each rank has a seed of its own
        self.start = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.size = sum(p.nbytes for p in self.start.values())

        def loss_of(one: nn.Module, number: int) -> torch.Tensor:
            tokens, labels = batch_of(cfg, number, group)
            return loss_sum(one(tokens), labels) / labels.numel()

        optimizer = torch.optim.Adam(model.parameters(), cfg.lr, eps=cfg.eps)
        self.steps = train_steps(model, optimizer, loss_of, cfg.steps)
        self.norms = [nn.utils.get_total_norm(step.gradients.values()) for step in self.steps]


def batch_of(cfg: Config, number: int, group: Group) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and labels of the whole batch, (rows, context) each."""
    tokens, labels = token_batch(cfg.gpt, cfg.rows, number)
    return tokens.to(group.device), labels.to(group.device)


@dataclass
class Row:
    """A strategy at work on this rank, and the formulas that judge it.

    Attributes:
        step: trains step ``number`` and returns this rank's loss.
        named: (name, parameter) of all that this rank holds.
        optimizer: the one whose state counts.
        traffic: the formula of a step's calls and bytes.
        part: what this rank holds of a whole parameter between two steps; ``gradient_part`` of its gradient.
        gradients: {name: what this rank has of it after a step}; None: the parameters' ``.grad``.
        keeps: the formula of the bytes in store after a step, by kind; None: of ``part``.
        share: what this rank's loss counts in the loss of the batch.
        even: each rank's calls and bytes are those of the formula; else only their sums are.
        bubble: the simulated share of the time in which the stages of a pipeline wait for each other.
        left_at_most: bytes that forward may leave for backward; None: any number.
        check: what else the row claims, and can be seen after a step.
    """

    step: Callable[[int], torch.Tensor]
    named: Named
    optimizer: Any
    traffic: Traffic
    part: PartOf = whole
    gradient_part: PartOf | None = None
    gradients: Callable[[], dict[str, torch.Tensor]] | None = None
    keeps: dict[str, int] | None = None
    share: float = 1.0
    even: bool = True
    bubble: float | None = None
    left_at_most: int | None = None
    check: Callable[[], None] = lambda: None


class Job:
    """What a row is built from: a model that begins as the truth did, a mesh, rows, an optimizer."""

    def __init__(self, truth: Truth, experts: bool, group: Group, cfg: Config) -> None:
        self.truth = truth
        self.experts = experts
        self.group = group
        self.cfg = cfg
        self.dimensions: Sizes = {}  # of all meshes
        self.dimension_of: dict[tuple[int, ...], str] = {}  # by the members of a group

    def model(self) -> GPT:
        model = self.truth.make()
        for name, p in model.named_parameters():
            p.data.copy_(self.truth.start[name])
        return model

    def mesh(self, **sizes: int) -> DeviceMesh:
        """The outermost dimension first."""
        names = tuple(sizes)
        mesh = init_device_mesh(self.group.device.type, tuple(sizes.values()), mesh_dim_names=names)
        for name in names:
            self.note(name, mesh.get_group(name))
        return mesh

    def note(self, name: str, group: dist.ProcessGroup) -> None:
        """Calls among these ranks are those along ``name``."""
        self.dimensions[name] = dist.get_world_size(group)
        self.dimension_of[tuple(dist.get_process_group_ranks(group))] = name

    def adam(self, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, self.cfg.lr, eps=self.cfg.eps)

    def rows(self, number: int, index: int = 0, parts: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and labels of one part of the batch's rows."""
        tokens, labels = batch_of(self.cfg, number, self.group)
        return tokens.chunk(parts)[index], labels.chunk(parts)[index]

    @property
    def all_labels(self) -> int:
        return self.cfg.rows * self.cfg.gpt.context

    def activations(self, rows: int) -> int:
        """Bytes of what goes from block to block."""
        return rows * self.cfg.gpt.context * self.cfg.gpt.width * self.cfg.gpt.dtype.itemsize

    def bytes_of(self, part: PartOf, of: Callable[[str], bool] = lambda name: True) -> int:
        """What this rank holds of all parameters whose name fits."""
        held = [part(name, tensor) for name, tensor in self.truth.start.items() if of(name)]
        return sum(tensor.nbytes for tensor in held if tensor is not None)


def recomputing(model: nn.Module) -> nn.Module:
    """Lesson 19: each block keeps its input only, and computes forward again in backward."""
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return model


def place(mesh: DeviceMesh, *names: str) -> tuple[int, int]:
    """(index, parts): this rank's part of what is divided along ``names``, the outermost first."""
    index, parts = 0, 1
    for name in names:
        index = index * mesh[name].size() + mesh.get_local_rank(name)
        parts *= mesh[name].size()
    return index, parts


def steps_of(
    optimizer: Any, loss_of: Callable[[int], torch.Tensor], after_backward: Callable[[], None] = lambda: None
) -> Callable[[int], torch.Tensor]:
    """The usual step."""

    def step(number: int) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(number)
        loss.backward()
        after_backward()
        optimizer.step()
        return loss.detach()

    return step


def mean_of_rows(job: Job, model: nn.Module, index: int = 0, parts: int = 1) -> Callable:
    """The loss of these rows: their mean."""

    def loss_of(number: int) -> torch.Tensor:
        tokens, labels = job.rows(number, index, parts)
        return loss_sum(model(tokens), labels) / labels.numel()

    return loss_of


def kinds(parameters: int, gradients: int, stepped: int, tensors: int) -> dict[str, int]:
    """Adam keeps two numbers for each that it steps, and counts the steps of each tensor in 4 bytes."""
    return {PARAMETERS: parameters, GRADIENTS: gradients, OPTIMIZER: 2 * stepped + 4 * tensors}
