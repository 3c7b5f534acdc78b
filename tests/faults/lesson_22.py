"""Planted faults of lesson 22; the form is described in ``tests/faults/__init__.py``."""

from typing import Any

from tests.faults import Fault


def of_row(name: str, lab: str, old: str, new: str, told: str, ranks: int = 4) -> Fault:
    """A fault that turns one row of the table red."""
    options: dict[str, Any] = {"run": "22_table", "ranks": ranks, "arguments": ("--only", name)}
    return Fault(lab, old, new, f"{name}{told}", **options)


ROWS = [
    of_row(
        "single",
        "22_strategies",
        "step = steps_of(optimizer, mean_of_rows(job, model))",
        "step = steps_of(optimizer, mean_of_rows(job, model, 0, 2))",
        ", step 0: loss",
    ),
    of_row(
        "DDP",
        "22_strategies",
        'step = steps_of(optimizer, mean_of_rows(job, copies, *place(mesh, "dp")))',
        'step = steps_of(optimizer, mean_of_rows(job, model, *place(mesh, "dp")))',
        ": a step calls nothing",
    ),
    of_row(
        "DDP, 2 micro-batches",
        "22_strategies",
        "half == len(halves) - 1  # what no_sync() switches",
        "True",
        ": a step calls dp all_reduce (4, ",
    ),
    of_row(
        "ZeRO-1",
        "18_zero_1",
        "self.gradient, op=dist.ReduceOp.AVG, group=self.group)",
        "self.gradient, group=self.group)",
        ", step 0: gradient of",
    ),
    of_row(
        "FSDP",
        "22_strategies",
        "        fully_shard(unit, mesh=mesh, **options)\n",
        "        pass\n",
        ": a step calls dp all_gather (1, ",
    ),
    of_row(
        "FSDP, checkpointing",
        "22_strategies",
        "            block.forward = partial(checkpoint, block.forward, use_reentrant=False)\n",
        "            pass\n",
        ": forward leaves ",
    ),
    of_row(
        "HSDP",
        "22_strategies",
        'mesh["replicate", "shard"])',
        'mesh["shard"])',
        ": a step calls shard all_gather",
    ),
    of_row(
        "TP",
        "22_strategies",
        "tensor_parallel.split_gpt(job.model(), group)\n    optimizer",
        "tensor_parallel.split_gpt(job.model(), group, enter=lambda x, _: x)\n    optimizer",
        ": a step calls tp all_reduce (12, ",
    ),
    of_row(
        "TP + SP",
        "22_strategies",
        "loss_over_tp(job, model, group), sum_whole),",
        "loss_over_tp(job, model, group)),",
        ": a step calls tp all_gather",
    ),
    of_row(
        "PP, 1F1B",
        "16_executor",
        "warm_up = min(ranks - rank, micro_batches)",
        "warm_up = micro_batches",
        ": 8 micro-batches at once",
    ),
    of_row(
        "CP, ring",
        "22_strategies",
        "lambda number: n * part_of_loss(number))",
        "part_of_loss)",
        ", step 0: loss: differs",
    ),
    of_row(
        "CP, Ulysses",
        "22_strategies",
        'cp(job, "Ulysses", ',
        'cp(job, "gather", ',
        ": a step calls cp all_gather",
    ),
    of_row(
        "FSDP x CP",
        "22_strategies",
        "    shard_units(model, model.blocks, joined)\n    sum_gradients_only(model)\n",
        "    shard_units(model, model.blocks, joined)\n",
        ", step 0: gradient of",
    ),
    of_row(
        "FSDP x TP",
        "22_strategies",
        'data: tuple[str, ...] = ("dp",)',
        'data: tuple[str, ...] = ("tp",)',
        ", step 0: loss",
    ),
    of_row(
        "EP",
        "22_strategies",
        "partial(expert_parallel.reduce_gradients, model, group)",
        "partial(expert_parallel.reduce_gradients, model, group, scale=0.25)",
        ", step 0: gradient of",
    ),
    of_row(
        "FSDP x EP",
        "22_strategies",
        "    fully_shard(model, mesh=dense)\n    sum_gradients_only(model)\n",
        "    fully_shard(model, mesh=dense)\n",
        ", step 0: gradient of",
    ),
    of_row(
        "PP x FSDP x TP",
        "22_strategies",
        'dist.all_reduce(tied, group=mesh.get_group("pp"))',
        "pass",
        ": a step calls dp all_gather",
        ranks=8,
    ),
]

FAULTS: list[Fault] = [
    Fault("22_mesh", "in reversed(sizes)", "in sizes", "torch counts as we do", ranks=4),
    Fault(
        "22_mesh",
        'DistributedSampler(batch, num_replicas=mesh["dp"].size(), rank=dp, shuffle=False)',
        "DistributedSampler(batch, shuffle=False)",
        "rows: the same along tp, others along dp",
        ranks=4,
    ),
    Fault(
        "22_figure",
        'FIGURE_5 = {"dp": 2, "pp": 2, "cp": 2, "tp": 2}',
        'FIGURE_5 = {"tp": 2, "cp": 2, "pp": 2, "dp": 2}',
        "tp: GPU 0 is to be with GPU 1",
        ranks=0,
    ),
    Fault(
        "22_figure",
        '"Llama 3": ("dp", "pp", "cp", "tp")',
        '"Llama 3": ("tp", "cp", "pp", "dp")',
        "TP stays inside of a server",
        ranks=0,
    ),
    *ROWS,
    Fault(
        "22_table",
        " / (count // parameter.numel())",
        "",
        "DDP: the norm of the gradient is",
        ranks=4,
        arguments=("--only", "DDP"),
    ),
    Fault(
        "22_table",
        "else wire_bytes() - before",
        "else 0",
        "asked for and on the wire",
        ranks=4,
        arguments=("--only", "DDP"),
    ),
    Fault(
        "22_load",
        "norm = torch.stack(norms).norm()",
        "norm = torch.stack(norms).sum()",
        ", step 0: gradient of",
        ranks=4,
    ),
    Fault(
        "22_norm",
        'partial(fsdp_tp, data=("dp", "tp"))',
        "fsdp_tp",
        "rows of its own for each rank were to give another loss",
        ranks=4,
    ),
    Fault(
        "22_load",
        'dcp.load({"model": state, "optimizer": moments}, checkpoint_id=folder)',
        'dcp.load({"model": state}, checkpoint_id=folder)',
        ", after loading, step 0: parameter",
    ),
]
