# accepted: pickle carries the whole state in two broadcasts
"""Lets pickle carry the whole state: its size, then its bytes."""

from pathlib import Path

import torch.distributed as dist
from torch import nn

from shared.runtime.loading import load_file

average_in_backward = load_file(Path(__file__).parents[1] / "solution.py", "solution_08").average_in_backward


def start_equal(module: nn.Module) -> None:
    state = [module.state_dict()]
    dist.broadcast_object_list(state, src=0)
    module.load_state_dict(state[0])
