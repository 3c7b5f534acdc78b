# rejected: a forward under no_grad between forward and backward: on rank
"""Each forward decides whether the next backward averages, even one without gradients."""

from pathlib import Path

import torch

from shared.runtime.loading import load_file

solution = load_file(Path(__file__).parents[1] / "solution.py", "solution_09")


class OverlappedDDP(solution.OverlappedDDP):
    def forward(self, *inputs, **kwargs):
        output = super().forward(*inputs, **kwargs)
        self.sync_this = self.sync and torch.is_grad_enabled()
        return output
