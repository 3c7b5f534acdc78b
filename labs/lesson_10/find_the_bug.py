"""Around the box of lesson 10: 100 images, of which a fifth is for testing."""

# ruff: noqa: F401, F821, I001
import torch
import torch.distributed as dist
from around import LONG, told_apart
from torch.utils.data import DataLoader, DistributedSampler, random_split


dist.init_process_group("gloo", timeout=LONG)
with told_apart():
    rank = dist.get_rank()
    size = dist.get_world_size()
    images = range(100)
    trained_on: set[int] = set()

    def train_step(batch: torch.Tensor) -> None:
        trained_on.update(batch.tolist())

    ...  # the excerpt
    of_ranks: list = [None] * size
    dist.all_gather_object(of_ranks, trained_on)
    known = set(test_set) & set.union(*of_ranks)
    print(f"rank {rank}: {len(known)} of its {len(test_set)} test images were trained on")
