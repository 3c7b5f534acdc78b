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
        "        self.optimizer.zero_grad()\n        loss = self.loss(number)\n",
        "        loss = self.loss(number)\n",
        ", step 1: gradient of",
    ),
    of_row(
        "DP by hand",
        "22_strategies",
        "dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)",
        "dist.all_reduce(p.grad)",
        ", step 0: gradient of",
    ),
    of_row("DDP", "22_strategies", "self.ddp(tokens)", "self.model(tokens)", ": a step calls nothing"),
    of_row(
        "ZeRO-1",
        "18_zero_1",
        "self.gradient, op=dist.ReduceOp.AVG, group=self.group)",
        "self.gradient, group=self.group)",
        ", step 0: gradient of",
    ),
    of_row(
        "ZeRO-2",
        "18_by_hand",
        "        p.grad = None\n        if shard.grad is None:",
        "        if shard.grad is None:",
        ", step 1: gradient of",
    ),
    of_row(
        "FSDP",
        "22_strategies",
        "            fully_shard(unit, mesh=mesh, **options)\n",
        "            pass\n",
        ": a step calls dp all_gather (1, ",
    ),
    of_row(
        "HSDP",
        "22_strategies",
        'list(model.blocks), "replicate", "shard")',
        'list(model.blocks), "shard")',
        ": a step calls shard all_gather",
    ),
    of_row(
        "TP",
        "22_strategies",
        'super().build(tensor_parallel.split_gpt(model, self.mesh.get_group("tp")))',
        'super().build(tensor_parallel.split_gpt(model, self.mesh.get_group("tp"), enter=lambda x, _: x))',
        ": a step calls tp all_reduce (12, ",
    ),
    of_row(
        "TP + SP",
        "22_strategies",
        'sequence_parallel.sum_gradients_of_whole_parameters(self.model, self.mesh.get_group("tp"))',
        "pass",
        ": a step calls tp all_gather",
    ),
    of_row(
        "PP, GPipe",
        "22_strategies",
        "        self.trainer.tied.add_gradients()\n",
        "",
        ": a step calls pp recv",
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
        'context_parallel.sum_gradients(self.model, self.mesh.get_group("cp"))',
        "pass",
        ": a step calls cp recv",
    ),
    of_row(
        "CP, Ulysses",
        "22_strategies",
        'way = "Ulysses"',
        'way = "gather"',
        ": a step calls cp all_gather",
    ),
    of_row("EP", "22_strategies", "/ (labels.numel() * self.ranks)", "/ labels.numel()", ", step 0: loss"),
    of_row(
        "FSDP x TP",
        "22_strategies",
        "part(self.group.rank, self.sizes, self.data)",
        'part(self.group.rank, self.sizes, ["tp"])',
        ", step 0: loss",
    ),
    of_row(
        "PP x FSDP x TP",
        "22_strategies",
        'dist.all_reduce(tied, group=self.mesh.get_group("pp"))',
        "pass",
        ": a step calls dp all_gather",
        ranks=8,
    ),
]

FAULTS: list[Fault] = [
    Fault("22_mesh", "in reversed(sizes)", "in sizes", "torch counts as we do", ranks=4),
    Fault(
        "22_mesh",
        'index, parts = part(rank, sizes, ["dp"])',
        "index, parts = rank, ranks",
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
        "DP by hand: the norm of the gradient is",
        ranks=4,
        arguments=("--only", "DP by hand"),
    ),
    Fault(
        "22_norm",
        "norm = torch.stack(norms).norm()",
        "norm = torch.stack(norms).sum()",
        "norm, mesh by mesh: differs",
        ranks=4,
    ),
    Fault(
        "22_norm",
        '    data = ("dp", "tp")\n',
        '    data = ("dp",)\n',
        "rows of its own for each rank were to give another loss",
        ranks=4,
    ),
    Fault(
        "22_load",
        'dcp.load({"model": state, "optimizer": moments}, checkpoint_id=folder)',
        'dcp.load({"model": state}, checkpoint_id=folder)',
        "2 steps after loading:",
    ),
]

STILL_WITHOUT: list[str] = []
