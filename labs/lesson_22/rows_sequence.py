"""Rows of the table: CP by a ring and by Ulysses, with FSDP. A rank has a part of each sequence."""

from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from shared.training.gpt import loss_sum
from shared.training.one_process import whole

from lesson_19.sharding import shard_units
from lesson_20 import proof_gpt as context_parallel
from lesson_22.rows import Job, Row, Traffic, place, recomputing, steps_of
from lesson_22.rows_data import buckets
from lesson_22.rows_sharded import gathers_and_scatters, in_blocks, sum_gradients_only


def loss_of_tokens(job: Job, model: nn.Module, way: str, mesh: DeviceMesh, *data: str) -> Callable:
    """What this rank's tokens add to the loss: their sum, divided by the labels of *all* ranks."""

    def loss_of(number: int) -> torch.Tensor:
        tokens, labels = job.rows(number, *place(mesh, *data))
        tokens, labels = context_parallel.part_of_batch(tokens, labels, way, mesh.get_group("cp"))
        return loss_sum(model(tokens), labels) / job.all_labels

    return loss_of


def sends_of_ring(job: Job, rows: int, ranks: int, recompute: bool = False) -> tuple[int, int]:
    """To N - 1 ranks: keys and values, forward and backward, and their gradients; to recompute, once more."""
    messages = (4 if recompute else 3) * (ranks - 1) * job.cfg.gpt.layers
    return messages, messages * 2 * job.activations(rows) // ranks


def cp(job: Job, way: str, traffic: Traffic, recompute: bool = False) -> Row:
    """Lesson 20: 1/N of the sequence on each rank. Their gradients are averaged as DDP does it."""
    n = job.group.world_size
    mesh = job.mesh(cp=n)
    model = context_parallel.split_context(job.model(), way, mesh.get_group("cp"))
    if recompute:
        recomputing(model)
    optimizer = job.adam(model.parameters())
    copies = DistributedDataParallel(model, process_group=mesh.get_group("cp"))
    part_of_loss = loss_of_tokens(job, copies, way, mesh)
    step = steps_of(optimizer, lambda number: n * part_of_loss(number))  # DDP divides by the ranks
    traffic |= {("cp", "all_reduce"): (buckets(job), job.truth.size)}
    return Row(step, model.named_parameters, optimizer, traffic, share=1 / n)


def cp_ring(job: Job, recompute: bool = False) -> Row:
    """Lesson 20: keys and values go round."""
    messages = sends_of_ring(job, job.cfg.rows, job.group.world_size, recompute)
    return cp(job, "ring", {("cp", "send"): messages, ("cp", "recv"): messages}, recompute)


def cp_ring_recomputing(job: Job) -> Row:
    return cp_ring(job, recompute=True)


def cp_ulysses(job: Job) -> Row:
    """Lesson 20: for attention, each rank has all of the sequence and 1/N of the heads."""
    layers = job.cfg.gpt.layers
    own = job.activations(job.cfg.rows) // job.group.world_size
    # Queries, keys, values in one, and the output; their gradients come back.
    return cp(job, "Ulysses", {("cp", "all_to_all"): (4 * layers, layers * 2 * (3 + 1) * own)})


def fsdp_cp(job: Job) -> Row:
    """Parts of a sequence along cp, other rows along dp; shards over both, joined into one dimension."""
    mesh = job.mesh(dp=job.group.world_size // 2, cp=2)
    joined = mesh["dp", "cp"]._flatten("dp_cp")
    job.note("dp_cp", joined.get_group())
    model = context_parallel.split_context(job.model(), "ring", mesh.get_group("cp"))
    shard_units(model, joined)
    sum_gradients_only(model)
    optimizer = job.adam(model.parameters())
    n = joined.size()
    gathers, scatters = gathers_and_scatters(
        len(model.blocks), job.truth.size, job.bytes_of(whole, in_blocks), n
    )
    messages = sends_of_ring(job, job.cfg.rows // mesh["dp"].size(), 2)
    traffic = {
        ("dp_cp", "all_gather"): gathers,
        ("dp_cp", "reduce_scatter"): scatters,
        ("cp", "send"): messages,
        ("cp", "recv"): messages,
    }
    return Row(
        steps_of(optimizer, loss_of_tokens(job, model, "ring", mesh, "dp")),
        model.named_parameters,
        optimizer,
        traffic,
        part=lambda name, tensor: tensor.chunk(n)[joined.get_local_rank()],
    )
