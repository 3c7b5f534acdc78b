"""One GPT that all ranks begin with, its batches, and training beside one process. Taught in lesson 17."""

from collections.abc import Callable
from typing import Protocol

import torch

from shared.comm.broadcast import broadcast_from_rank_0
from shared.runtime.errors import ParityError
from shared.runtime.group import Group
from shared.training.gpt import GPT, IGNORED, GPTConfig, loss_sum, token_batch
from shared.training.one_process import PartOf, PlainSGD, Step, assert_same_training, train_steps, whole

LossOf = Callable[[GPT, int], torch.Tensor]


class Settings(Protocol):
    """What a trial reads of a lab's config."""

    @property
    def rows(self) -> int: ...

    @property
    def steps(self) -> int: ...

    @property
    def lr(self) -> float: ...

    @property
    def tolerance(self) -> float: ...


class Trial:
    """What a strategy is put to. Each rank has a seed of its own, so rank 0's numbers are sent. Collective.

    Attributes:
        truth: the state dict that every model begins with.
    """

    def __init__(self, sizes: GPTConfig, group: Group, cfg: Settings) -> None:
        self.sizes = sizes
        self.group = group
        self.cfg = cfg
        model = self.new()
        broadcast_from_rank_0(model.parameters())
        self.truth = model.state_dict()

    def new(self) -> GPT:
        """A whole model with numbers of this rank's own."""
        return GPT(self.sizes).to(self.group.device)

    def model(self) -> GPT:
        """A whole model that begins with the truth."""
        model = self.new()
        model.load_state_dict(self.truth)
        return model

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and labels of the whole batch, (rows, length) each; the same on all ranks."""
        tokens, labels = token_batch(self.sizes, self.cfg.rows, step)
        return tokens.to(self.group.device), labels.to(self.group.device)

    def loss_alone(self, model: GPT, step: int) -> torch.Tensor:
        """The mean over all labels that count, in one process."""
        tokens, labels = self.batch(step)
        return loss_sum(model(tokens), labels) / int((labels != IGNORED).sum())

    def train(self, model: GPT, loss_of: LossOf, after_backward: Callable | None = None) -> list[Step]:
        """``train_steps`` with SGD."""
        sgd = PlainSGD(model.parameters(), self.cfg.lr)
        return train_steps(model, sgd, loss_of, self.cfg.steps, after_backward)

    def alone(self) -> list[Step]:
        """The truth that strategies are held against."""
        return self.train(self.model(), self.loss_alone)

    def verdict(self, ours: list[Step], alone: list[Step], part_of: PartOf = whole) -> str:
        """What parity says, without the number by which something differs."""
        try:
            assert_same_training("parity", ours, alone, self.cfg.tolerance, part_of)
        except ParityError as error:
            return str(error).split(" by ")[0]
        return "parity: equal"
