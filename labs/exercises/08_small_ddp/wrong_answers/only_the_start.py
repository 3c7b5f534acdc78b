# rejected: start_equal is right; average_in_backward is still to be written
"""Has written the first function only."""

from pathlib import Path

from torch import nn

from shared.runtime.loading import load_file

start_equal = load_file(Path(__file__).parents[1] / "solution.py", "solution_08").start_equal


def average_in_backward(module: nn.Module) -> None:
    raise NotImplementedError
