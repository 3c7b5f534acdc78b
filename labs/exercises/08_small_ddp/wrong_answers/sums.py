# rejected: it is the sum over the ranks
"""Forgets to divide."""

from pathlib import Path

import torch.distributed as dist
from torch import nn

from shared.runtime.loading import load_file

start_equal = load_file(Path(__file__).parents[1] / "solution.py", "solution_08").start_equal


def average_in_backward(module: nn.Module) -> None:
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
