# rejected: RuntimeError: cannot register a hook on a tensor that doesn't require gradient
"""Forgets that some parameters do not learn."""

from pathlib import Path

import torch.distributed as dist
from torch import nn

from shared.runtime.loading import load_file

start_equal = load_file(Path(__file__).parents[1] / "solution.py", "solution_08").start_equal


def average_in_backward(module: nn.Module) -> None:
    def average(parameter: nn.Parameter) -> None:
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()

    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(average)
