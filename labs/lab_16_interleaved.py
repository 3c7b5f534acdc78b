"""Two stages on each rank, as one types it at work: torch's interleaved 1F1B, and a V for zero bubble.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_16_interleaved.py
Written by:  notebooks/16_pipeline_parallel.ipynb (edit it there)
"""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before setup(): imported later, the exit may abort (lesson 08)
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B, ScheduleZBVZeroBubble
from torch.distributed.pipelining.schedules import PipelineScheduleMulti

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU
from lab_16_gpipe import LAYERS, MICRO_BATCHES, ROWS, WIDTH, layers, share_of_loss


def loop(rank: int, ranks: int) -> tuple[int, int]:
    """The numbers of a rank's two stages: the model goes around all ranks, twice."""
    return rank, ranks + rank


def v_shape(rank: int, ranks: int) -> tuple[int, int]:
    """The same for a V: down the ranks, and back. The first and the last stage are on rank 0."""
    return rank, 2 * ranks - 1 - rank


def schedule_of(
    make: type[PipelineScheduleMulti], models: dict[int, nn.Module], device: torch.device
) -> PipelineScheduleMulti:
    """A schedule of several stages on a rank takes a list of them; ``models`` has them by number."""
    total = 2 * dist.get_world_size()
    stages = [PipelineStage(model, number, total, device) for number, model in models.items()]
    return make(stages, MICRO_BATCHES, loss_fn=share_of_loss, scale_grads=False)


def run(
    schedule: PipelineScheduleMulti, models: dict[int, nn.Module], x, labels, train: bool = True
) -> torch.Tensor:
    """The loss of the batch, on the rank of the last stage, 0 elsewhere. Training leaves gradients, too."""
    losses: list[torch.Tensor] = []
    inputs = (x,) if 0 in models else ()
    target = {"target": labels, "losses": losses} if 2 * dist.get_world_size() - 1 in models else {}
    call = schedule.step if train else schedule.eval  # a pipelined model cannot be called: eval() forwards
    call(*inputs, **target, return_outputs=False)
    return sum(losses, torch.zeros((), dtype=x.dtype, device=x.device)).detach()


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()

    stages = 2 * ranks
    count = max(LAYERS, stages)  # at least one layer for each stage
    torch.manual_seed(100)
    x = torch.randn(ROWS, WIDTH, dtype=torch.float64).to(device)
    labels = torch.randint(WIDTH, (ROWS,)).to(device)
    whole = layers(range(count)).to(device)  # only to compare: one process, the whole batch at once
    expected = share_of_loss(whole(x), labels)
    expected.backward()

    for make, numbers in ((ScheduleInterleaved1F1B, loop), (ScheduleZBVZeroBubble, v_shape)):
        own = {n: range(count * n // stages, count * (n + 1) // stages) for n in numbers(rank, ranks)}
        models = {n: layers(own[n]).to(device) for n in own}
        schedule = schedule_of(make, models, device)
        losses = [run(schedule, models, x, labels)]
        if numbers is loop:  # eval() of a V raises in torch 2.15
            losses.append(run(schedule, models, x, labels, train=False))
        for n, model in models.items():
            same = whole[own[n].start : own[n].stop]
            for ours, theirs in zip(model.parameters(), same.parameters(), strict=True):
                assert torch.allclose(ours.grad, theirs.grad, rtol=0, atol=1e-12), f"gradient in stage {n}"
        found = torch.stack(losses)
        dist.all_reduce(found)  # the ranks without the last stage have 0
        assert torch.allclose(found, expected.detach(), rtol=0, atol=1e-12), f"{found} is not {expected}"
        everyones = [None] * ranks
        dist.all_gather_object(everyones, sorted(models))
        if rank == 0:
            print(f"{make.__name__}: stages of the ranks {everyones}")
            told = ", by eval() ".join(f"{one:.6f}" for one in found.tolist())
            print(f"    loss {told}; loss and gradients equal those of one process")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
