"""Exercise 08: a small DDP of your own: equal at the start, and averaged in backward."""

import torch
import torch.distributed as dist
from torch import nn


def start_equal(module: nn.Module) -> None:
    """Give every rank rank 0's parameters and buffers, in place.

    They have several dtypes. Tensors of one dtype travel together: at most one broadcast for each dtype.
    Tied parameters stay tied, and a parameter keeps its storage: optimizers hold it.
    """
    raise NotImplementedError  # your turn: replace this line


def average_in_backward(module: nn.Module) -> None:
    """Arrange that after each later ``backward()`` every ``p.grad`` is the mean of the ranks' gradients.

    Called once, after ``start_equal``. Whoever trains calls nothing but ``backward()``. Each rank uses the
    same parameters; some do not learn. One all-reduce for each parameter will do: lesson 09 makes it fast.
    """
    raise NotImplementedError  # your turn: replace this line
