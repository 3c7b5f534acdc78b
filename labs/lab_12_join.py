"""Ranks with 5, 6, ... inputs end together: DistributedDataParallel under Join.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_12_join.py
Written by:  notebooks/12_uneven_inputs.ipynb
"""

import os
from collections.abc import Iterable

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a group, or it holds it: exit code -6, lesson 08
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


def train(ddp: nn.Module, batches: Iterable, learning_rate: float, **options: bool) -> int:
    """Make a step for each of this rank's batches (x, y), however many other ranks have; return how many.

    ``options`` are those of ``Join``. A rank that has run out of batches makes no steps; at the end DDP gives
    it the parameters of a rank that ran out last. SGD without momentum has no state that could stay behind.
    """
    optimizer = torch.optim.SGD(ddp.parameters(), learning_rate)
    used = 0
    with Join([ddp], **options):
        for x, y in batches:
            optimizer.zero_grad()
            F.mse_loss(ddp(x), y).backward()
            optimizer.step()
            used += 1
    return used


def setup() -> torch.device:
    """Join the group that torchrun describes; return this rank's device: a GPU of its own, else the CPU."""
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu")
    device_id = None
    if torch.accelerator.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device(torch.accelerator.current_accelerator().type, local_rank)
        device_id = device
        torch.accelerator.set_device_index(local_rank)
    dist.init_process_group(dist.get_default_backend_for_device(device), device_id=device_id)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks on {device.type} with {dist.get_backend()}")
    return device


def main() -> None:
    device = setup()
    rank = dist.get_rank()
    torch.manual_seed(rank)  # each rank has data of its own; DDP starts from rank 0's parameters
    ddp = DistributedDataParallel(nn.Linear(8, 1).to(device))
    batches = [
        (torch.randn(16, 8, device=device), torch.randn(16, 1, device=device)) for _ in range(5 + rank)
    ]
    used = train(ddp, batches, learning_rate=0.1)

    ranks = dist.get_world_size()
    counts = [0] * ranks
    dist.all_gather_object(counts, used)
    parameters = torch.cat([p.detach().flatten() for p in ddp.parameters()])
    everyone = [torch.empty_like(parameters) for _ in range(ranks)]
    dist.all_gather(everyone, parameters)
    assert counts == [5 + r for r in range(ranks)], f"inputs used by each rank: {counts}"
    assert all(torch.equal(p, parameters) for p in everyone), "the ranks end with different parameters"
    if rank == 0:
        print(f"inputs used by each rank: {counts}; all ranks end with the same parameters")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
