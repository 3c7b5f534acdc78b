"""One model over several processes: each builds and trains its own layers, a stage of the model.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_15_stages.py
Written by:  notebooks/15_model_parallel.ipynb (edit it there)
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU

BLOCKS = 8
WIDTH = 64
ROWS = 48
STEPS = 60


def build(width: int = WIDTH) -> nn.Sequential:
    """The whole model: (rows, width) to (rows, width)."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(BLOCKS)))


def fill(blocks: nn.Sequential, first: int) -> None:
    """Initialize these blocks; the first has number ``first``.

    Each block has a seed of its own, so that its values do not depend on who holds the others.
    """
    for number, block in enumerate(blocks, first):
        torch.manual_seed(number)
        block[0].reset_parameters()


def stage_of(rank: int, ranks: int, device: torch.device, width: int = WIDTH) -> nn.Sequential:
    """The blocks of one rank, on its device. No process ever has memory for the whole model."""
    with torch.device("meta"):  # shapes and dtypes, no memory
        whole = build(width)
    first = BLOCKS * rank // ranks
    stage = whole[first : BLOCKS * (rank + 1) // ranks]
    stage.to_empty(device=device)  # memory for these blocks alone, with whatever values are there
    fill(stage, first)
    return stage


def forward_backward(stage: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Fill the gradients of this rank's stage. Returns the loss on the last rank, 0 elsewhere. Collective.

    Args:
        x: (rows, width). Only the first rank looks at the values.
        labels: (rows,). Only the last rank looks at the values.
    """
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    if rank > 0:
        x = torch.empty_like(x)
        dist.recv(x, src=rank - 1)
        x.requires_grad_()  # backward then leaves in x.grad what the previous rank waits for
    y = stage(x)
    if rank == last:
        loss = F.cross_entropy(y, labels)
        loss.backward()
    else:
        dist.send(y.detach(), dst=rank + 1)
        gradient = torch.empty_like(y)
        dist.recv(gradient, src=rank + 1)
        y.backward(gradient)
        loss = torch.zeros((), dtype=y.dtype, device=y.device)
    if rank > 0:
        dist.send(x.grad, dst=rank - 1)
    return loss.detach()


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()

    assert ranks <= BLOCKS, f"{ranks} ranks for {BLOCKS} blocks: some stages would be empty"
    stage = stage_of(rank, ranks, device)
    optimizer = torch.optim.Adam(stage.parameters(), lr=0.003)  # of its own parameters alone
    data = torch.Generator().manual_seed(0)  # the same batches on all ranks
    losses = []
    for _ in range(STEPS):
        x = torch.randn(ROWS, WIDTH, generator=data)
        labels = x[:, :4].argmax(1)  # which of the first four numbers is the largest?
        optimizer.zero_grad()
        losses.append(forward_backward(stage, x.to(device), labels.to(device)))
        optimizer.step()

    ends = torch.stack([losses[0], losses[-1]])
    dist.broadcast(ends, src=ranks - 1)  # the last rank alone knows the loss
    held = [None] * ranks
    dist.all_gather_object(held, sum(p.nbytes for p in stage.parameters()))
    if rank == 0:
        for r, size in enumerate(held):
            print(f"rank {r} holds {size:,} of {sum(held):,} bytes of parameters")
        print(f"loss {ends[0]:.3f} in the first step, {ends[1]:.3f} in step {STEPS}")
    assert ends[1] < 0.7 * ends[0], "the model has not learned"
    dist.barrier()  # no rank leaves while another still communicates
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
