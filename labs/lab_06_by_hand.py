"""Distributed synchronous SGD, written by hand: broadcast, partition, average.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_06_by_hand.py
Written by:  notebooks/06_data_parallel_by_hand.ipynb (edit it there)
"""

import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a group, or it holds it: exit code -6, lesson 08
import torch.nn.functional as F
from torch import nn

EPOCHS = 10
BATCH_PER_RANK = 32


def broadcast_parameters(model: nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0, in place. Collective."""
    for tensor in [*model.parameters(), *model.buffers()]:  # a state_dict leaves some buffers out
        dist.broadcast(tensor.detach(), src=0)


def partition_dataset(images: int, epoch: int, global_batch: int) -> list[torch.Tensor]:
    """Return this rank's part of each batch of an epoch: indices, one tensor per step.

    All ranks draw the same order, so their parts fit together without communication. The images that fill no
    global batch are left out of this epoch, so all ranks make the same number of steps.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    order = torch.randperm(images, generator=torch.Generator().manual_seed(epoch))
    starts = range(0, images - global_batch + 1, global_batch)
    return [order[start : start + global_batch][rank::world_size] for start in starts]


def average_gradients(model: nn.Module) -> None:
    """Replace each gradient by its mean over the ranks, one all-reduce per parameter. Collective.

    It is the gradient of the joined batch if the loss is a mean over images, and all ranks have as many.
    """
    for parameter in model.parameters():
        if parameter.requires_grad:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


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

    x = torch.rand(2000, 2, generator=torch.Generator().manual_seed(0)).to(device)  # points of a square
    y = ((x - 0.5).norm(dim=1) < 0.4).long()  # 1 in a disc around its centre, 0 elsewhere
    torch.manual_seed(dist.get_rank())  # a different model on each rank: the broadcast makes them equal
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
    broadcast_parameters(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    for epoch in range(EPOCHS):
        for mine in partition_dataset(len(x), epoch, BATCH_PER_RANK * dist.get_world_size()):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[mine]), y[mine])
            loss.backward()
            average_gradients(model)
            optimizer.step()
        mean_loss = loss.detach()
        dist.all_reduce(mean_loss)  # a rank's own loss is that of its part
        mean_loss /= dist.get_world_size()
        if dist.get_rank() == 0 and epoch % 3 == 0:
            print(f"epoch {epoch}: loss of the last batch {mean_loss.item():.4f}")

    for parameter in model.parameters():
        from_rank_0 = parameter.detach().clone()
        dist.broadcast(from_rank_0, src=0)
        assert torch.equal(parameter, from_rank_0), "the ranks hold different parameters"
    assert mean_loss < 0.4, "the model has not learned"
    if dist.get_rank() == 0:
        print(f"all {dist.get_world_size()} ranks hold the same parameters")
    dist.barrier()  # nobody leaves while another rank still communicates
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
