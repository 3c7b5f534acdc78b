"""Rows of the table: FSDP, with checkpointing, HSDP. Between steps a rank has shards."""

from torch import nn
from torch.distributed.fsdp import FSDPModule

from shared.training.one_process import whole

from lesson_19.sharding import shard_units
from lesson_22.rows import Job, Row, mean_of_rows, place, recomputing, steps_of


def gathers_and_scatters(layers: int, everything: int, in_blocks: int, ranks: int) -> tuple:
    """What FSDP calls for units of so many bytes: blocks are gathered once more for backward."""
    return (1 + 2 * layers, (everything + in_blocks) // ranks), (1 + layers, everything)


def in_blocks(name: str) -> bool:
    return name.startswith("blocks.")


def sum_gradients_only(model: nn.Module) -> None:
    """FSDP adds up, and divides by nothing: each rank has divided its loss by the labels of all ranks.

    torchtitan does so, too (``disable_fsdp_gradient_division``). A factor other than the default is a
    PREMUL_SUM, which gloo does not have; "force sum" makes it a plain sum.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)


def fsdp(job: Job, recompute: bool = False) -> Row:
    """Lesson 19: parameters, gradients and state are shards."""
    n = job.group.world_size
    mesh = job.mesh(dp=n)
    model = job.model()
    if recompute:
        recomputing(model)
    shard_units(model, mesh)
    optimizer = job.adam(model.parameters())
    of_blocks = job.bytes_of(whole, in_blocks)
    gathers, scatters = gathers_and_scatters(len(model.blocks), job.truth.size, of_blocks, n)
    left_at_most = None
    if recompute:  # the inputs of blocks, ends of the model; what is gathered: the root, the last block
        of_rows = 2 * len(model.blocks) * job.activations(job.cfg.rows // n)
        left_at_most = of_rows + job.truth.size - of_blocks + of_blocks // len(model.blocks)
    return Row(
        steps_of(optimizer, mean_of_rows(job, model, *place(mesh, "dp"))),
        model.named_parameters,
        optimizer,
        {("dp", "all_gather"): gathers, ("dp", "reduce_scatter"): scatters},
        part=lambda name, tensor: tensor.chunk(n)[job.group.rank],
        share=1 / n,
        left_at_most=left_at_most,
    )


def fsdp_recomputing(job: Job) -> Row:
    """Lesson 19: a block keeps its input only, and computes forward again in backward."""
    return fsdp(job, recompute=True)


def hsdp(job: Job) -> Row:
    """Lesson 19: shards within a group of ranks, copies between the groups."""
    mesh = job.mesh(replicate=job.group.world_size // 2, shard=2)
    model = job.model()
    shard_units(model, mesh["replicate", "shard"])
    optimizer = job.adam(model.parameters())
    gathers, scatters = gathers_and_scatters(
        len(model.blocks), job.truth.size, job.bytes_of(whole, in_blocks), 2
    )
    traffic = {
        ("shard", "all_gather"): gathers,
        ("shard", "reduce_scatter"): scatters,
        ("replicate", "all_reduce"): (1 + len(model.blocks), job.truth.size // 2),
    }
    return Row(
        steps_of(optimizer, mean_of_rows(job, model, *place(mesh, "replicate", "shard"))),
        model.named_parameters,
        optimizer,
        traffic,
        part=lambda name, tensor: tensor.chunk(2)[mesh.get_local_rank("shard")],
        share=1 / job.group.world_size,
    )
