# accepted: a tensor hook that returns the mean, before autograd accumulates it
"""Averages what is about to be added to the gradient."""

from pathlib import Path

import torch.distributed as dist
from torch import nn

from shared.runtime.loading import load_file

start_equal = load_file(Path(__file__).parents[1] / "solution.py", "solution_08").start_equal


def average_in_backward(module: nn.Module) -> None:
    def average(gradient: object) -> object:
        mean = gradient / dist.get_world_size()
        dist.all_reduce(mean)
        return mean

    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_hook(average)
