"""Two devices of one process, GPUs or else simulated ones, and a model on them. Taught in lesson 15."""

import os
from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import nn

from shared.training.simulated_devices import Link


@dataclass
class TwoDevices:
    """Devices number 0 and 1 of one process, and the link between them.

    Args:
        first, second: the real devices. Both are the CPU where there are not two GPUs for each process:
            then ``move`` copies within one memory, and the devices 0 and 1 are simulated.
        numbers: which devices of this machine they are, real or not. No other process may use them.
    """

    first: torch.device
    second: torch.device
    numbers: tuple[int, int]
    link: Link = field(default_factory=Link)

    @classmethod
    def of_process(cls, local_rank: int, processes_here: int) -> "TwoDevices":
        """Devices 2 r and 2 r + 1 for the process of *local* rank r; RANK_BY_RANK_DEVICE=cpu forces CPUs."""
        numbers = (2 * local_rank, 2 * local_rank + 1)
        wanted = os.environ.get("RANK_BY_RANK_DEVICE", "cuda") == "cuda"
        if wanted and torch.cuda.is_available() and torch.cuda.device_count() >= 2 * processes_here:
            return cls(torch.device("cuda", numbers[0]), torch.device("cuda", numbers[1]), numbers)
        return cls(torch.device("cpu"), torch.device("cpu"), numbers)

    @property
    def real(self) -> bool:
        return self.first != self.second

    @property
    def transfers(self) -> Counter:
        """{(what, from, to): bytes} transferred so far."""
        return self.link.transfers

    def move(self, what: str, tensor: torch.Tensor, source: int, target: int) -> torch.Tensor:
        """Bring a tensor from device ``source`` to device ``target``, 0 or 1, and count its bytes.

        Its gradient comes back the other way and is counted as ``gradients of WHAT``.
        """
        return self.link.transfer(what, tensor, source, target).to((self.first, self.second)[target])

    def __str__(self) -> str:
        kind = "GPUs" if self.real else "simulated on one CPU"
        return f"devices {self.numbers[0]} and {self.numbers[1]}: {kind}"


class ToyMpModel(nn.Module):
    """Images (batch, 1, 8, 8) to scores (batch, 10), one layer on each of two devices.

    It is told its devices and knows none by itself. Inputs may come from anywhere; the output stays on the
    second device, so labels have to go there.
    """

    def __init__(self, devices: TwoDevices, hidden: int = 128) -> None:
        super().__init__()
        self.devices = devices
        self.net1 = nn.Linear(64, hidden).to(devices.first)
        self.net2 = nn.Linear(hidden, 10).to(devices.second)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.net1(x.flatten(1).to(self.devices.first)))
        x = self.devices.move("activations", x, 0, 1)
        return self.net2(x)
