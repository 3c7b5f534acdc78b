"""Around the box of lesson 09: a model of one weight, whose gradient is 1 on rank 0 and 3 on rank 1."""

# ruff: noqa: I001
import torch
import torch.distributed as dist
from around import LONG, told_apart
from torch import nn
from torch.nn.parallel import DistributedDataParallel


dist.init_process_group("gloo", timeout=LONG)
with told_apart():
    rank = dist.get_rank()
    size = dist.get_world_size()
    model = nn.Linear(1, 1, bias=False)
    ddp = DistributedDataParallel(model)
    x = torch.tensor([[1.0 + 2 * rank]])
    ...  # the excerpt
    print(f"rank {rank}: gradient {model.weight.grad.item()}")
