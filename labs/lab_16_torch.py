"""A pipeline as you would write it at work: torch's schedules, with one stage on each rank and with two.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_16_torch.py
Written by:  notebooks/16_pipeline_parallel.ipynb (edit it there)
"""

from collections.abc import Collection

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU
from lab_16_gpipe import MICRO_BATCHES, ROWS, assert_as_one_process, batch, layers, layers_of, share_of_loss

Schedule = PipelineScheduleSingle | PipelineScheduleMulti
# {schedule: the numbers of a rank's stages}
LAYOUTS = {
    Schedule1F1B: lambda rank, ranks: [rank],
    ScheduleInterleaved1F1B: lambda rank, ranks: [rank, ranks + rank],  # a loop: around all ranks, twice
    ScheduleZBVZeroBubble: lambda rank, ranks: [rank, 2 * ranks - 1 - rank],  # a V: down, and back
}


def schedule_of(make: type[Schedule], models: dict[int, nn.Module], device: torch.device) -> Schedule:
    """The order in which this rank works on its stages; ``models`` has them by number."""
    total = len(models) * dist.get_world_size()
    stages = [PipelineStage(model, number, total, device) for number, model in models.items()]
    several = issubclass(make, PipelineScheduleMulti)  # then the schedule takes a list
    return make(stages if several else stages[0], MICRO_BATCHES, loss_fn=share_of_loss, scale_grads=False)


def run(
    schedule: Schedule,
    models: dict[int, nn.Module],
    x: torch.Tensor,
    labels: torch.Tensor,
    train: bool = True,
) -> torch.Tensor:
    """The loss of the batch on the rank of the last stage, 0 elsewhere. Training leaves gradients, too."""
    losses: list[torch.Tensor] = []
    inputs = (x,) if 0 in models else ()  # only the first stage takes the batch, and only the last the labels
    last = len(models) * dist.get_world_size() - 1
    target = {"target": labels, "losses": losses} if last in models else {}
    call = schedule.step if train else schedule.eval  # a pipelined model cannot be called: eval() forwards
    for model in models.values():
        model.train(train)  # schedule.eval leaves dropout on
    with torch.set_grad_enabled(train):  # and gradients
        call(*inputs, **target, return_outputs=False)  # else the logits of all micro-batches would be kept
    return sum(losses, torch.zeros((), dtype=x.dtype, device=x.device)).detach()


def clip_stages(
    model: nn.Module,
    max_norm: float,
    copies: Collection[nn.Parameter] = (),
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Clip by the norm of the whole model's gradient, returned in float64. Collective over ``group``.

    Args:
        model: this rank's stage, or stages.
        copies: parameters that another rank counts, such as the last stage's copy of a tied embedding.
        group: the ranks of one pipeline. With data parallelism it is not the world: that would count each
            stage dp times.
    """
    own = [p for p in model.parameters() if not any(p is copy for copy in copies)]
    counted = [p.grad for p in own if p.grad is not None]  # a frozen parameter has none
    own_norm = nn.utils.get_total_norm(counted).to(next(model.parameters()).device)
    square = own_norm.double().square()  # in float16 it overflows above a norm of 256
    dist.all_reduce(square, group=group)
    norm = square.sqrt()
    nn.utils.clip_grads_with_norm_(model.parameters(), max_norm, norm)
    return norm


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    assert ROWS % MICRO_BATCHES == 0, f"{MICRO_BATCHES} micro-batches do not divide {ROWS} rows"
    x, labels = batch(device)
    for make, layout in LAYOUTS.items():
        numbers = layout(rank, ranks)
        own = {number: layers_of(number, len(numbers) * ranks) for number in numbers}
        models = {number: layers(own[number]).to(device) for number in numbers}
        whole = nn.ModuleList(models.values())  # of this rank
        optimizer = torch.optim.SGD(whole.parameters(), lr=1.0)
        schedule = schedule_of(make, models, device)
        loss = run(schedule, models, x, labels)
        assert_as_one_process({own[number]: models[number] for number in numbers}, loss)
        norm = clip_stages(whole, max_norm=0.1)
        optimizer.step()  # schedule.step() makes gradients, and no more
        told = ""
        if make is not ScheduleZBVZeroBubble:  # eval() of a V raises in torch 2.15
            later = run(schedule, models, x, labels, train=False)
            dist.all_reduce(later)  # the ranks without the last stage have 0
            assert later < loss, f"{make.__name__}: loss {loss}, after a step {later}"
            told = f", after a step {later.item():.6f}"
        if rank == 0:
            print(f"{make.__name__}: rank 0 has stages {numbers}")
            print(f"    equals one process; loss {loss.item():.6f}{told}; norm {norm.item():.3f}, clipped")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
