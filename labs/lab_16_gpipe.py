"""GPipe by hand: each rank holds one stage of a model, and micro-batches follow each other through it.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_16_gpipe.py
Written by:  notebooks/16_pipeline_parallel.ipynb (edit it there)
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU

LAYERS = 8
WIDTH = 32
ROWS = 24  # of the whole batch
MICRO_BATCHES = 8


def layers(numbers: range) -> nn.Sequential:
    """Some layers of the model. Each has a seed of its own, so that a rank need not build the others."""
    built = []
    for number in numbers:
        torch.manual_seed(number)
        built.append(nn.Sequential(nn.Linear(WIDTH, WIDTH, dtype=torch.float64), nn.Tanh()))
    return nn.Sequential(*built)


def share_of_loss(y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """What a micro-batch, (rows, WIDTH), adds to the mean loss of the whole batch."""
    return F.cross_entropy(y, labels, reduction="sum") / ROWS


def gpipe(stage: nn.Module, inputs: list[torch.Tensor], labels: list[torch.Tensor]) -> torch.Tensor:
    """Forward and backward of all micro-batches; the gradients add up in the stage's parameters.

    Args:
        inputs: (rows, WIDTH) of each micro-batch. Only the first rank looks at the values.
        labels: (rows,) of each micro-batch. Only the last rank looks at the values.

    Returns:
        The loss of the whole batch on the last rank, 0 elsewhere.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    first, last = rank == 0, rank == ranks - 1
    loss = torch.zeros((), dtype=inputs[0].dtype, device=inputs[0].device)
    kept = []
    for number in range(len(inputs)):  # forward of all
        x = inputs[number]
        if not first:
            x = torch.empty_like(x)
            dist.recv(x, src=rank - 1)
            x.requires_grad_()  # a leaf: backward will leave its gradient here
        y = stage(x)
        if last:
            y = share_of_loss(y, labels[number])
            loss += y.detach()
        else:
            dist.send(y.detach(), dst=rank + 1)
        kept.append((x, y))
    for x, y in kept:  # then backward of all
        gradient = None
        if not last:
            gradient = torch.empty_like(y)
            dist.recv(gradient, src=rank + 1)
        y.backward(gradient)
        if not first:
            dist.send(x.grad, dst=rank - 1)
    return loss


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()

    mine = range(LAYERS * rank // ranks, LAYERS * (rank + 1) // ranks)
    stage = layers(mine).to(device)
    torch.manual_seed(100)
    x = torch.randn(ROWS, WIDTH, dtype=torch.float64).to(device)
    labels = torch.randint(WIDTH, (ROWS,)).to(device)
    loss = gpipe(stage, list(x.chunk(MICRO_BATCHES)), list(labels.chunk(MICRO_BATCHES)))
    dist.broadcast(loss, src=ranks - 1)

    whole = layers(range(LAYERS)).to(device)  # only to compare: one process, the whole batch at once
    expected = share_of_loss(whole(x), labels)
    expected.backward()
    assert abs(loss - expected) < 1e-12, f"the loss is {loss}, in one process {expected}"
    for number, layer in zip(mine, stage, strict=True):
        for ours, theirs in zip(layer.parameters(), whole[number].parameters(), strict=True):
            assert torch.allclose(ours.grad, theirs.grad, rtol=0, atol=1e-12), f"gradient of layer {number}"

    held = [None] * ranks
    dist.all_gather_object(held, list(mine))
    if rank == 0:
        for r, numbers in enumerate(held):
            print(f"[rank {r}] holds layers {numbers}")
        print(f"loss {loss.item():.6f}; loss and gradients equal those of one process")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
