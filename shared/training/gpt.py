"""A tiny GPT: the one model that every strategy of lessons 15 to 22 splits. Taught in lesson 16."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

IGNORED = -100  # a label that counts for nothing, as in F.cross_entropy


@dataclass(frozen=True)
class GPTConfig:
    """Sizes. ``width`` divides by ``heads``; ``context`` is the longest sequence."""

    vocabulary: int = 64
    context: int = 32
    width: int = 32
    heads: int = 4
    layers: int = 4
    dropout: float = 0.0
    dtype: torch.dtype = torch.float64  # so that equality can be claimed to 1e-12


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Each position looks at itself and at those before it: (batch, heads, length, head width) each."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    later = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(later, -math.inf).softmax(-1) @ v


class Attention(nn.Module):
    """(batch, length, width) to the same. ``attend`` can be replaced, ``heads`` is of this module alone."""

    def __init__(self, cfg: GPTConfig) -> None:
        super().__init__()
        self.heads = cfg.heads
        self.attend = causal_attention
        self.query = nn.Linear(cfg.width, cfg.width, dtype=cfg.dtype)
        self.key = nn.Linear(cfg.width, cfg.width, dtype=cfg.dtype)
        self.value = nn.Linear(cfg.width, cfg.width, dtype=cfg.dtype)
        self.out = nn.Linear(cfg.width, cfg.width, dtype=cfg.dtype)

    def split_heads(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, heads * head width) to (batch, heads, length, head width)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.split_heads(layer(x)) for layer in (self.query, self.key, self.value))
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """(batch, length, width) to the same, four times as wide in between."""

    def __init__(self, cfg: GPTConfig) -> None:
        super().__init__()
        self.up = nn.Linear(cfg.width, 4 * cfg.width, dtype=cfg.dtype)
        self.down = nn.Linear(4 * cfg.width, cfg.width, dtype=cfg.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    """(batch, length, width) to the same: attention and MLP, each with its norm, added to what came in."""

    def __init__(self, cfg: GPTConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(cfg.width, dtype=cfg.dtype)
        self.attention = Attention(cfg)
        self.norm2 = nn.LayerNorm(cfg.width, dtype=cfg.dtype)
        self.mlp = MLP(cfg)
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    """Tokens (batch, length) to logits (batch, length, vocabulary). ``head`` has the weight of ``tokens``."""

    def __init__(self, cfg: GPTConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.tokens = nn.Embedding(cfg.vocabulary, cfg.width, dtype=cfg.dtype)
        self.positions = nn.Embedding(cfg.context, cfg.width, dtype=cfg.dtype)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.layers))
        self.norm = nn.LayerNorm(cfg.width, dtype=cfg.dtype)
        self.head = nn.Linear(cfg.width, cfg.vocabulary, bias=False, dtype=cfg.dtype)
        self.head.weight = self.tokens.weight

    def embed(self, tokens: torch.Tensor, first_position: int = 0) -> torch.Tensor:
        """(batch, length) to (batch, length, width); the first token stands at ``first_position``."""
        places = torch.arange(first_position, first_position + tokens.shape[1], device=tokens.device)
        return self.tokens(tokens) + self.positions(places)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_sum(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sum of the losses of all tokens; divide by their number in the *whole* batch. Ignored labels add 0."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")


def token_batch(cfg: GPTConfig, rows: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and labels, both (rows, context), one place apart; each row counts up by its own stride."""
    generator = torch.Generator().manual_seed(step)
    start = torch.randint(cfg.vocabulary, (rows, 1), generator=generator)
    stride = torch.randint(1, 8, (rows, 1), generator=generator)
    rows_of_tokens = (start + stride * torch.arange(cfg.context + 1)) % cfg.vocabulary
    return rows_of_tokens[:, :-1].clone(), rows_of_tokens[:, 1:].clone()
