"""The script of lesson 10 with another task: a small transformer that predicts the next byte of a text.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_10_tokens.py --epochs 2
Written by:  notebooks/10_training_template.ipynb (edit it there)
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import lab_10_train as script

NOT_COUNTED = -100  # the label after the end of a line: cross_entropy leaves it out
LONGEST, WIDTH = 64, 64


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, WIDTH)
        self.place = nn.Parameter(torch.randn(LONGEST, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores (batch, length, 256) of the bytes that follow; ``tokens``: (batch, length)."""
        future = torch.ones(LONGEST, LONGEST, dtype=torch.bool, device=tokens.device).triu(1)
        return self.head(self.blocks(self.embed(tokens) + self.place, mask=future, is_causal=True))


class Bytes(script.Images):
    unit = "tokens"

    def data(self) -> script.Data:
        is_given = self.options.data != "digits"
        file = Path(self.options.data if is_given else script.__file__)
        if not file.is_file():
            raise script.DataError(f"--data {file}: no text of that name")
        lines = [list(line[: LONGEST + 1]) for line in file.read_bytes().splitlines() if line]
        rows = torch.full((len(lines), LONGEST + 1), NOT_COUNTED)
        for row, line in zip(rows, lines, strict=True):
            row[: len(line)] = torch.tensor(line)
        pairs = TensorDataset(rows[:, :-1].clamp(min=0), rows[:, 1:])
        test, train = torch.utils.data.random_split(pairs, [0.1, 0.9], torch.Generator().manual_seed(0))
        return script.Data(train, test, 256, script.seed_of(lines))

    def model(self, data: script.Data) -> nn.Module:
        return Transformer()

    def loss(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x).transpose(1, 2), y, ignore_index=NOT_COUNTED, reduction="sum")

    def count(self, labels: torch.Tensor) -> torch.Tensor:
        counted = (labels != NOT_COUNTED).sum()
        dist.all_reduce(counted)
        return counted.clamp(min=1)

    def right(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (model(x).argmax(2) == y).sum(), (y != NOT_COUNTED).sum()


if __name__ == "__main__":
    sys.exit(script.main(task=Bytes))
