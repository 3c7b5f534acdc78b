"""Rows of the table: TP, with SP, with FSDP. A rank has a part of each layer."""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from shared.training.one_process import whole

from lesson_17 import proof_gpt as tensor_parallel
from lesson_17 import proof_sequence as sequence_parallel
from lesson_19.sharding import shard_units
from lesson_22.rows import Job, Row, place, recomputing, steps_of
from lesson_22.rows_sharded import gathers_and_scatters, in_blocks


def loss_over_tp(
    job: Job, model: nn.Module, group: dist.ProcessGroup, index: int = 0, parts: int = 1
) -> Callable:
    """The mean of these rows, from logits that stay on their ranks."""

    def loss_of(number: int) -> torch.Tensor:
        tokens, labels = job.rows(number, index, parts)
        total = tensor_parallel.vocabulary_parallel_loss_sum(model(tokens), labels, group)
        return total / labels.numel()

    return loss_of


def all_reduces_of_tp(job: Job, layers: int, rows: int) -> tuple[int, int]:
    """f and g of each block twice, g of the embedding, f of the head, and three for the loss."""
    of_activations = 4 * layers + 2
    per_token = rows * job.cfg.gpt.context * job.cfg.gpt.dtype.itemsize
    return of_activations + 3, of_activations * job.activations(rows) + 3 * per_token


def tp(job: Job) -> Row:
    """Lesson 17: 1/N of each layer; all ranks read the whole batch."""
    n = job.group.world_size
    group = job.mesh(tp=n).get_group("tp")
    model = tensor_parallel.split_gpt(job.model(), group)
    optimizer = job.adam(model.parameters())
    return Row(
        steps_of(optimizer, loss_over_tp(job, model, group)),
        model.named_parameters,
        optimizer,
        {("tp", "all_reduce"): all_reduces_of_tp(job, len(model.blocks), job.cfg.rows)},
        part=tensor_parallel.part_in(group),
        share=1 / n,
    )


def tp_sp(job: Job, recompute: bool = False) -> Row:
    """Lesson 17: and between the split layers 1/N of the sequence.

    To ``recompute`` a block gathers both inputs again, and reduces one output: the last is needed by nobody.
    """
    n = job.group.world_size
    group = job.mesh(tp=n).get_group("tp")
    model = sequence_parallel.split_sequence(job.model(), group)
    if recompute:
        recomputing(model)
    optimizer = job.adam(model.parameters())
    sum_whole = partial(sequence_parallel.sum_gradients_of_whole_parameters, model, group)
    calls, size = all_reduces_of_tp(job, len(model.blocks), job.cfg.rows)
    of_loss = size - (calls - 3) * job.activations(job.cfg.rows)
    of_whole = job.bytes_of(whole, lambda name: not sequence_parallel.is_split(name))
    again = len(model.blocks) if recompute else 0
    gathers, scatters = calls - 3 + 2 * again, calls - 3 + again
    one = job.activations(job.cfg.rows)
    traffic = {  # the all-reduces of TP, in two halves
        ("tp", "all_gather"): (gathers, gathers * one // n),
        ("tp", "reduce_scatter"): (scatters, scatters * one),
        ("tp", "all_reduce"): (3 + 1, of_loss + of_whole),
    }
    return Row(
        steps_of(optimizer, loss_over_tp(job, model, group), sum_whole),
        model.named_parameters,
        optimizer,
        traffic,
        part=tensor_parallel.part_in(group),
        share=1 / n,
    )


def tp_sp_recomputing(job: Job) -> Row:
    return tp_sp(job, recompute=True)


def fsdp_tp(job: Job, data: tuple[str, ...] = ("dp",)) -> Row:
    """FSDP of what TP leaves on a rank. A group of tp reads the same rows."""
    mesh = job.mesh(dp=job.group.world_size // 2, tp=2)
    group = mesh.get_group("tp")
    model = tensor_parallel.split_gpt(job.model(), group)
    shard_units(model, mesh["dp"])
    optimizer = job.adam(model.parameters())
    of_tp = tensor_parallel.part_in(group)
    index, n = place(mesh, "dp")
    gathers, scatters = gathers_and_scatters(
        len(model.blocks), job.bytes_of(of_tp), job.bytes_of(of_tp, in_blocks), n
    )
    traffic = {
        ("dp", "all_gather"): gathers,
        ("dp", "reduce_scatter"): scatters,
        ("tp", "all_reduce"): all_reduces_of_tp(job, len(model.blocks), job.cfg.rows // n),
    }
    return Row(
        steps_of(optimizer, loss_over_tp(job, model, group, *place(mesh, *data))),
        model.named_parameters,
        optimizer,
        traffic,
        part=lambda name, tensor: of_tp(name, tensor).chunk(n)[index],
        share=1 / job.group.world_size,
    )
