"""Rows of the table: EP, with FSDP. Experts in place of each MLP, which is another model."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
from torch.distributed.tensor import Shard

from shared.training.gpt import loss_sum
from shared.training.one_process import whole

from lesson_21 import proof_gpt as expert_parallel
from lesson_22.rows import Job, Row, place, recomputing, steps_of
from lesson_22.rows_sharded import gathers_and_scatters, in_blocks, sum_gradients_only


def loss_of_rows(job: Job, model: nn.Module, mesh: DeviceMesh, name: str) -> Callable:
    """What this rank's rows add to the loss: their sum, divided by the labels of *all* ranks."""

    def loss_of(number: int) -> torch.Tensor:
        tokens, labels = job.rows(number, *place(mesh, name))
        return loss_sum(model(tokens), labels) / job.all_labels

    return loss_of


def exchanges(job: Job, recompute: bool = False) -> tuple[int, int]:
    """The mean over the ranks: counts, then routed tokens there and back, and their gradients.

    To ``recompute``, counts and tokens there and back once more: of five exchanges eight.
    """
    cfg = job.cfg
    routed = cfg.k * job.activations(cfg.rows) // job.group.world_size
    counts, passes = (2, 3) if recompute else (1, 2)
    size = counts * 8 * cfg.experts + 2 * passes * routed
    return (counts + 2 * passes) * cfg.gpt.layers, cfg.gpt.layers * size


def is_dense(name: str) -> bool:
    return not expert_parallel.is_expert(name)


def ep(job: Job, recompute: bool = False) -> Row:
    """Lesson 21: some experts on each rank; tokens travel to those that they chose."""
    mesh = job.mesh(ep=job.group.world_size)
    group = mesh.get_group("ep")
    model = expert_parallel.spread_experts(job.model(), group)
    if recompute:
        recomputing(model)
    optimizer = job.adam(model.parameters())
    reduce = partial(expert_parallel.reduce_gradients, model, group)
    traffic = {
        ("ep", "all_to_all"): exchanges(job, recompute),
        ("ep", "all_reduce"): (1, job.bytes_of(whole, is_dense)),
    }
    return Row(
        steps_of(optimizer, loss_of_rows(job, model, mesh, "ep"), reduce),
        model.named_parameters,
        optimizer,
        traffic,
        part=expert_parallel.part_in(group),
        even=False,  # who gets how many tokens, the router decides
    )


def ep_recomputing(job: Job) -> Row:
    return ep(job, recompute=True)


def fsdp_ep(job: Job) -> Row:
    """Two meshes over the same ranks: experts are divided along ep and efsdp, all else is sharded along dp.

    One ``fully_shard`` of a block shards both kinds; torchtitan does it so. A gradient of an expert is the
    sum over its ep group already, one of the rest is not: so nobody divides by a number of ranks.
    """
    ranks = job.group.world_size
    dense, sparse = job.mesh(dp=ranks), job.mesh(efsdp=ranks // 2, ep=2)
    model = expert_parallel.spread_experts(job.model(), sparse.get_group("ep"))
    of_experts = ShardPlacementResult(Shard(0), FSDPMeshInfo(sparse["efsdp"], shard_mesh_dim=0))
    for block in model.blocks:
        experts = set(block.mlp.experts.parameters())
        fully_shard(
            block,
            mesh=dense,
            shard_placement_fn=lambda p, experts=experts: of_experts if p in experts else None,
        )
    fully_shard(model, mesh=dense)
    sum_gradients_only(model)
    optimizer = job.adam(model.parameters())
    of_ep = expert_parallel.part_in(sparse.get_group("ep"))
    layers, efsdp = len(model.blocks), sparse["efsdp"].size()

    def part(name: str, tensor: torch.Tensor) -> torch.Tensor:
        index, parts = place(dense, "dp") if is_dense(name) else place(sparse, "efsdp")
        return of_ep(name, tensor).chunk(parts)[index]

    everything = job.bytes_of(whole, is_dense)
    dense_blocks = job.bytes_of(whole, lambda name: is_dense(name) and in_blocks(name))
    own_experts = job.bytes_of(of_ep, expert_parallel.is_expert)
    gathers, scatters = gathers_and_scatters(layers, everything, dense_blocks, ranks)
    traffic = {
        ("dp", "all_gather"): gathers,
        ("dp", "reduce_scatter"): scatters,
        ("efsdp", "all_gather"): (2 * layers, 2 * own_experts // efsdp),
        ("efsdp", "reduce_scatter"): (layers, own_experts),
        ("ep", "all_to_all"): exchanges(job),
    }
    return Row(
        steps_of(optimizer, loss_of_rows(job, model, dense, "dp")),
        model.named_parameters,
        optimizer,
        traffic,
        part=part,
        even=False,
    )
