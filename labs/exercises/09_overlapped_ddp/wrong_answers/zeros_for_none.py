# rejected: but nobody has used it: it must stay None
"""Gives zeros to parameters that nobody has used; a weight decay or momentum would then move them."""

from pathlib import Path

import torch

from shared.runtime.loading import load_file

solution = load_file(Path(__file__).parents[1] / "solution.py", "solution_09")


class OverlappedDDP(solution.OverlappedDDP):
    def _finish(self):
        for parameter in self.trainable:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        super()._finish()
