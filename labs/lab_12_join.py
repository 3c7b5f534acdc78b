"""Ranks with 5, 6, ... inputs end together: DistributedDataParallel under Join.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_12_join.py
Written by:  notebooks/12_uneven_inputs.ipynb (edit it there)
"""

import os
import socket
import sys
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
    """Join the group that the launcher describes; return this rank's device: a GPU of its own, or the CPU.

    The CPU is for jobs without a GPU, and for RANK_BY_RANK_DEVICE=cpu. A job with too few GPUs ends here.
    """
    device = torch.device("cpu")
    gpu = "none"
    if torch.cuda.device_count() > 0 and os.environ.get("RANK_BY_RANK_DEVICE") != "cpu":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        gpu = str(torch.cuda.get_device_properties(device).uuid)
    store, rank, world_size = next(dist.rendezvous("env://"))
    store.set(f"GPU of rank {rank}", gpu)  # all ranks must choose the same backend
    gpus = set(store.multi_get([f"GPU of rank {other}" for other in range(world_size)])) - {b"none"}
    if 0 < len(gpus) < world_size:
        mine = f"rank {rank} on {socket.gethostname()} has {device}"
        ways = "start one rank for each GPU, or all with RANK_BY_RANK_DEVICE=cpu"
        sys.exit(f"{world_size} ranks, {len(gpus)} GPUs ({mine}): {ways}")
    backend = "nccl" if gpus else "gloo"
    bound = device if gpus else None
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, device_id=bound)
    if rank == 0:
        print(f"{world_size} ranks on {device.type} with {backend}")
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
