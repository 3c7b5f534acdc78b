"""Around the box of lesson 12: the loss of rank 1 is small from its third batch on, that of rank 0 is not."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from around import BROKEN, LONG, SHORT, box_is_left, told_apart, wait_for
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def batches_of(rank: int) -> Iterator[torch.Tensor]:
    """Six batches. When rank 0 would wait in vain, it waits for a short time only."""
    for number in range(6):
        if BROKEN and rank == 0 and number == 2:
            wait_for(box_is_left(1))
            dist.distributed_c10d.set_timeout(SHORT)
        yield torch.zeros(1, 1) if number >= 2 + 2 * (1 - rank) else torch.ones(1, 1)


dist.init_process_group("gloo", timeout=LONG)
with told_apart():
    rank = dist.get_rank()
    size = dist.get_world_size()
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    batches = batches_of(rank)
    ...  # the excerpt
