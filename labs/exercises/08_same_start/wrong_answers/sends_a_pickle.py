# rejected: the values are right, but took 0 broadcasts and 1 others
"""Lets pickle carry the whole state."""

import torch.distributed as dist
from torch import nn


def start_equal(module: nn.Module) -> None:
    state = [module.state_dict()]
    dist.broadcast_object_list(state, src=0)
    module.load_state_dict(state[0])
