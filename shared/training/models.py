"""Models that several lessons train. Taught in lesson 08."""

import torch
from torch import nn


class ConvNet(nn.Module):
    """A small classifier: (batch, 1, side, side) to (batch, 10) scores. ``side`` divides by 2."""

    def __init__(self, side: int = 8, channels: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, 2 * channels, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(2 * channels * (side // 2) ** 2, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv1(x))
        x = self.pool(torch.relu(self.conv2(x)))
        return self.head(x.flatten(1))


class AwkwardNet(nn.Module):
    """A classifier of digits with what trips up a DDP written by hand.

    Input (batch, 1, 8, 8), output (batch, 10) scores.
    ``first`` and ``second`` share a weight, ``frozen`` does not learn, ``branch`` is used only on request,
    ``spare`` never.
    """

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(64, 32).requires_grad_(False)
        self.first = nn.Linear(32, 32)
        self.second = nn.Linear(32, 32)
        self.second.weight = self.first.weight  # tied
        self.branch = nn.Linear(32, 32)
        self.spare = nn.Linear(32, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor, use_branch: bool) -> torch.Tensor:
        x = torch.tanh(self.first(self.frozen(x.flatten(1))))
        if use_branch:
            x = x + torch.tanh(self.branch(x))
        return self.head(torch.tanh(self.second(x)))


class Block(nn.Module):
    """Two layers beside a shortcut: (batch, width) to (batch, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class BlockNet(nn.Module):
    """A classifier of digits, built of equal blocks: (batch, 1, 8, 8) to (batch, 10) scores."""

    def __init__(self, width: int = 48, blocks: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(64, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.last = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x.flatten(1))
        for block in self.blocks:
            x = block(x)
        return self.last(x)
