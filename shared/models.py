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
