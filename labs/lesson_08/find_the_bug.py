"""Around the box of lesson 08: a backbone that is frozen at first, and a head."""

# ruff: noqa: F401
import torch
import torch.distributed as dist
from around import LONG, told_apart
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(1, 1, bias=False)
        self.head = nn.Linear(1, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


dist.init_process_group("gloo", timeout=LONG)
with told_apart():
    rank = dist.get_rank()
    size = dist.get_world_size()
    model = Net()
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    x = torch.tensor([[1.0]])
    y = torch.tensor([[2.0 + rank]])
    ...  # the excerpt
    print(f"rank {rank}: head {model.head.weight.item():.3f}, backbone {model.backbone.weight.item():.3f}")
