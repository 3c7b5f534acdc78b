"""GPipe by hand: each rank holds one stage of a model, and micro-batches follow each other through it.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_16_gpipe.py
Written by:  notebooks/16_pipeline_parallel.ipynb (edit it there)
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU

LAYERS = 16
WIDTH = 32
ROWS = 24  # of the whole batch
MICRO_BATCHES = 8


def layers(numbers: range) -> nn.Sequential:
    """Some layers of the model. Each has a seed of its own, so that a rank need not build the others."""
    built = []
    for number in numbers:
        torch.manual_seed(number)
        linear = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        nn.init.orthogonal_(linear.weight)  # else the gradient vanishes in so many layers
        built.append(nn.Sequential(linear, nn.Tanh()))
    return nn.Sequential(*built)


def layers_of(stage: int, stages: int) -> range:
    """The numbers of a stage's layers."""
    return range(LAYERS * stage // stages, LAYERS * (stage + 1) // stages)


def batch(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs, (ROWS, WIDTH), and labels, (ROWS,): the same on all ranks."""
    torch.manual_seed(100)
    x = torch.randn(ROWS, WIDTH, dtype=torch.float64)
    return x.to(device), torch.randint(WIDTH, (ROWS,)).to(device)


def share_of_loss(y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """What a micro-batch, (rows, WIDTH), adds to the mean loss of the whole batch."""
    return F.cross_entropy(y, labels, reduction="sum") / ROWS


def gpipe(stage: nn.Module, inputs: Sequence[torch.Tensor], labels: Sequence[torch.Tensor]) -> torch.Tensor:
    """Fill the gradients of this rank's stage. Returns the loss on the last rank, 0 elsewhere.

    Only the first rank looks at the values of ``inputs``, and only the last one at those of ``labels``.
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
            x.requires_grad_()  # backward then leaves in x.grad what the previous rank waits for
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


def assert_as_one_process(stages: dict[range, nn.Module], loss: torch.Tensor) -> None:
    """Compare with one process and the whole batch at once. ``loss`` is 0 except on one rank. Collective."""
    dist.all_reduce(loss)
    x, labels = batch(loss.device)
    whole = layers(range(LAYERS)).to(loss.device)
    expected = share_of_loss(whole(x), labels)
    expected.backward()
    assert abs(loss - expected) < 1e-12, f"the loss is {loss}, in one process {expected}"
    for numbers, stage in stages.items():
        for number, layer in zip(numbers, stage, strict=True):
            for ours, theirs in zip(layer.parameters(), whole[number].parameters(), strict=True):
                assert torch.allclose(ours.grad, theirs.grad, rtol=0, atol=1e-12), (
                    f"layer {number}: a gradient"
                )


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = layers_of(rank, ranks)
    stage = layers(mine).to(device)
    x, labels = batch(device)
    loss = gpipe(stage, x.chunk(MICRO_BATCHES), labels.chunk(MICRO_BATCHES))
    assert_as_one_process({mine: stage}, loss)
    if rank == 0:
        print(f"each rank holds {len(mine)} of {LAYERS} layers")
        print(f"loss {loss.item():.6f}; loss and gradients equal those of one process")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
