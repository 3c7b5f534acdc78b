"""Around the box of lesson 07: a model that recognises 90 of 100 images, and its evaluation."""

# ruff: noqa: F401, F821
import torch
import torch.distributed as dist
from around import LONG, told_apart
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset


class Recognises(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x


dist.init_process_group("gloo", timeout=LONG)
with told_apart():
    rank = dist.get_rank()
    size = dist.get_world_size()
    device = torch.device("cpu")
    labels = torch.arange(100) % 10
    seen = torch.where(torch.arange(100) < 10, 9 - labels, labels)  # ten images are taken for others
    test_set = TensorDataset(nn.functional.one_hot(seen, 10).float(), labels)
    model = DistributedDataParallel(Recognises())
    ...  # the excerpt
    accuracy = evaluate(model)
    if rank == 0:
        print(f"{accuracy:.1%} of {len(test_set)} images recognised")
