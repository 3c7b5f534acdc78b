"""A stage of a GPT: some of its blocks, and its ends where they belong. Taught in lesson 16."""

import torch
from torch import nn

from shared.training.gpt import GPT, Block, GPTConfig


class Stage(nn.Module):
    """Consecutive blocks of a GPT; parameters bear the names that they have there.

    The first stage has ``tokens`` and ``positions``, and takes tokens, (rows, length); the others take
    activations, (rows, length, width). The last one has ``norm`` and ``head``, and makes logits, (rows,
    length, vocabulary). The weight that the GPT uses at both ends lies in both stages, as that of ``tokens``.
    """

    def __init__(
        self,
        blocks: dict[str, nn.Module],
        tokens: nn.Module | None = None,
        positions: nn.Module | None = None,
        norm: nn.Module | None = None,
        head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict(blocks)
        self.tokens = tokens
        self.positions = positions
        self.norm = norm
        self.head = head

    @property
    def last(self) -> bool:
        return self.head is not None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.positions is not None:
            x = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks.values():
            x = block(x)
        return self.head(self.norm(x)) if self.last else x


def layers_of(layers: int, number: int, stages: int) -> range:
    """The blocks of stage ``number``."""
    return range(layers * number // stages, layers * (number + 1) // stages)


def new_stage(cfg: GPTConfig, number: int, stages: int) -> Stage:
    """Stage ``number`` of a GPT that nobody has whole."""
    first, last = number == 0, number == stages - 1
    blocks = {str(i): Block(cfg) for i in layers_of(cfg.layers, number, stages)}
    stage = Stage(blocks)
    if first or last:
        stage.tokens = nn.Embedding(cfg.vocabulary, cfg.width, dtype=cfg.dtype)
    if first:
        stage.positions = nn.Embedding(cfg.context, cfg.width, dtype=cfg.dtype)
    if last:
        stage.norm = nn.LayerNorm(cfg.width, dtype=cfg.dtype)
        stage.head = nn.Linear(cfg.width, cfg.vocabulary, bias=False, dtype=cfg.dtype)
        stage.head.weight = stage.tokens.weight
    return stage


def stage_of(model: GPT, number: int, stages: int) -> Stage:
    """Stage ``number`` of a whole model, which may be split in other ways already."""
    first, last = number == 0, number == stages - 1
    return Stage(
        {str(i): model.blocks[i] for i in layers_of(len(model.blocks), number, stages)},
        tokens=model.tokens if first or last else None,
        positions=model.positions if first else None,
        norm=model.norm if last else None,
        head=model.head if last else None,
    )
