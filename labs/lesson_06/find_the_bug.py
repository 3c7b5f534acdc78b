"""Around the box of lesson 06: two ranks, and a model with a head for each."""

# ruff: noqa: I001
import torch
import torch.distributed as dist
from around import LONG, told_apart
from torch import nn


dist.init_process_group("gloo", timeout=LONG)
with told_apart():
    rank = dist.get_rank()
    size = dist.get_world_size()
    heads = nn.ModuleDict({name: nn.Linear(1, 1, bias=False) for name in ("cats", "dogs")})
    x = torch.tensor([[1.0]]) if rank == 0 else torch.tensor([[10.0]])
    ...  # the excerpt
    gradients = {name: head.weight.grad for name, head in heads.items()}
    told = [f"{name} {None if grad is None else grad.item()}" for name, grad in gradients.items()]
    print(f"rank {rank}: {', '.join(told)}")
