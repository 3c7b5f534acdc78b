"""Distributed synchronous SGD, written by hand: broadcast, partition, average.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_06_by_hand.py
Written by:  notebooks/06_data_parallel_by_hand.ipynb (edit it there)
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU

EPOCHS = 10
TRAINING = 2000  # points
GLOBAL_BATCH = 64  # points of all ranks together: the training stays the same on any number of them


def broadcast_parameters(model: nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0, in place. Collective: all call it."""
    for tensor in [*model.parameters(), *model.buffers()]:  # a state_dict leaves some buffers out
        dist.broadcast(tensor.detach(), src=0)  # detach shares the memory: this writes into the parameter


def partition_dataset(samples: int, epoch: int, global_batch: int) -> list[torch.Tensor]:
    """Return this rank's part of each batch of an epoch: indices, one tensor per step.

    All ranks draw the same order, so their parts fit together without communication. The samples that fill no
    global batch are left out of this epoch, so all ranks make the same number of steps.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(epoch))
    starts = range(0, samples - global_batch + 1, global_batch)
    return [order[start : start + global_batch][rank::world_size] for start in starts]


def average_gradients(model: nn.Module) -> None:
    """Replace each gradient by its mean over the ranks, one all-reduce per parameter. Collective.

    It is the gradient of the joined batch if the loss is a mean over samples, and all ranks have the same
    number of them. A parameter that this rank has not used adds zeros.
    """
    for parameter in model.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


@torch.no_grad()
def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """The fraction of ``x`` that is recognised; exactly one rank evaluates each sample. Collective.

    The ranks add up hits and samples: a mean of their fractions would be wrong where their parts differ.
    """
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    was_training = model.training
    model.eval()  # dropout and batch norm work differently in training
    hits = (model(x[mine]).argmax(1) == y[mine]).sum()
    counts = torch.stack([hits, torch.tensor(len(y[mine]), device=y.device)])
    dist.all_reduce(counts)
    model.train(was_training)
    return (counts[0] / counts[1]).item()


def main() -> None:
    device = setup()
    if not dist.get_world_size() <= GLOBAL_BATCH <= TRAINING:
        limits = f"between the {dist.get_world_size()} ranks and the {TRAINING} points"
        raise ValueError(f"GLOBAL_BATCH is {GLOBAL_BATCH}, and must be {limits}")

    # Points of the unit square.
    points = torch.rand(TRAINING + 500, 2, generator=torch.Generator().manual_seed(0)).to(device)
    inside = ((points - 0.5).norm(dim=1) < 0.4).long()  # 1 in a disc around its centre, 0 elsewhere
    x, y = points[:TRAINING], inside[:TRAINING]
    torch.manual_seed(dist.get_rank())  # a different model on each rank: the broadcast makes them equal
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
    broadcast_parameters(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    global_batch = GLOBAL_BATCH // dist.get_world_size() * dist.get_world_size()  # equal parts
    for epoch in range(EPOCHS):
        for mine in partition_dataset(len(x), epoch, global_batch):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[mine]), y[mine])
            loss.backward()
            average_gradients(model)  # clip_grad_norm_ would come after this line
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
    recognised = accuracy(model, points[TRAINING:], inside[TRAINING:])
    assert recognised > 0.9, f"after {EPOCHS} epochs the model recognises only {recognised:.0%}"
    if dist.get_rank() == 0:
        print(f"500 new points: {recognised:.1%} recognised")
        print(f"all {dist.get_world_size()} ranks hold the same parameters")
    dist.barrier()  # nobody leaves while another rank still communicates
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
