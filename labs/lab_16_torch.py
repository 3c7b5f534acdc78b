"""A pipeline as one types it at work: torch's PipelineStage and Schedule1F1B train lab_16_gpipe's stages.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_16_torch.py
Written by:  notebooks/16_pipeline_parallel.ipynb (edit it there)
"""

from collections.abc import Collection

import torch
import torch.distributed as dist

# An optimizer would import this once the group exists. It would keep gloo's threads, and the exit may abort.
import torch.distributed.nn.functional
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU
from lab_16_gpipe import LAYERS, MICRO_BATCHES, ROWS, WIDTH, layers, share_of_loss


def schedule_of(model: nn.Module, device: torch.device) -> Schedule1F1B:
    """This rank's stage, and the order in which it works."""
    stage = PipelineStage(model, dist.get_rank(), dist.get_world_size(), device)
    return Schedule1F1B(stage, n_microbatches=MICRO_BATCHES, loss_fn=share_of_loss, scale_grads=False)


def forward_and_backward(schedule: Schedule1F1B, x: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    """All micro-batches of a batch; gradients add up. On the last rank, the loss of each micro-batch."""
    losses: list[torch.Tensor] = []
    inputs = (x,) if dist.get_rank() == 0 else ()  # only the first stage takes the batch
    if dist.get_rank() == dist.get_world_size() - 1:  # only the last stage takes the labels
        # By default, step() would keep the logits of all micro-batches, and return them.
        schedule.step(*inputs, target=labels, losses=losses, return_outputs=False)
    else:
        schedule.step(*inputs, return_outputs=False)
    return losses


def clip_stages(model: nn.Module, max_norm: float, copies: Collection[nn.Parameter] = ()) -> torch.Tensor:
    """Clip by the norm of the whole model's gradient, which is returned. Collective over the stages.

    Args:
        model: this rank's stage, or stages.
        copies: parameters that another rank counts, such as the last stage's copy of a tied embedding.
    """
    counted = [p.grad for p in model.parameters() if not any(p is copy for copy in copies)]
    square = nn.utils.get_total_norm(counted).square()
    dist.all_reduce(square)
    norm = square.sqrt()
    nn.utils.clip_grads_with_norm_(model.parameters(), max_norm, norm)
    return norm


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()

    assert ROWS % MICRO_BATCHES == 0, f"{MICRO_BATCHES} micro-batches do not divide {ROWS} rows"
    mine = range(LAYERS * rank // ranks, LAYERS * (rank + 1) // ranks)
    model = layers(mine).to(device)
    schedule = schedule_of(model, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    torch.manual_seed(100)
    x = torch.randn(ROWS, WIDTH, dtype=torch.float64).to(device)
    labels = torch.randint(WIDTH, (ROWS,)).to(device)
    for step in range(3):
        optimizer.zero_grad()
        losses = forward_and_backward(schedule, x, labels)  # schedule.step() makes gradients, and no more
        norm = clip_stages(model, max_norm=0.2)
        optimizer.step()
        if rank == ranks - 1:
            print(f"step {step}: loss {torch.stack(losses).sum().item():.6f}, norm {norm.item():.6f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
