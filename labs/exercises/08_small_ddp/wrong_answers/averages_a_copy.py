# rejected: it is this rank's own: nothing was averaged
"""A tensor hook whose result is thrown away: it averages a copy."""

from pathlib import Path

import torch.distributed as dist
from torch import nn

from shared.runtime.loading import load_file

start_equal = load_file(Path(__file__).parents[1] / "solution.py", "solution_08").start_equal


def average_in_backward(module: nn.Module) -> None:
    def average(gradient: object) -> None:
        mean = gradient / dist.get_world_size()
        dist.all_reduce(mean)

    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_hook(average)
