"""The norm of a gradient that lies on many ranks: right over FSDP x TP and over PP, and ways to get it wrong.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_22_norm.py
Written by:  notebooks/22_device_mesh.ipynb
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import lab_22_load as by_torch
import torch
import torch.distributed as dist
from lab_22_strategies import Config as TableConfig
from lab_22_strategies import FsdpTp, Pp1F1B, Strategy, Truths
from lab_22_table import global_norm
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from shared.runtime.errors import CourseError, ParityError
from shared.runtime.group import Group, process_group
from shared.runtime.report import gather_on_rank_0, print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.one_process import Step, assert_same_training
from shared.training.parity import assert_all_equal, assert_equal, gradients
from shared.training.storages import local_of


@dataclass(frozen=True)
class Config:
    table: TableConfig = field(default_factory=TableConfig)
    model: by_torch.Config = field(default_factory=by_torch.Config)
    max_norm: float = 0.1
    tolerance: float = 1e-12  # float64


def own_squares(strategy: Strategy) -> torch.Tensor:
    """The sum of the squares of all that this rank holds."""
    held = [local_of(gradient) for gradient in strategy.gradients().values()]
    return torch.stack([gradient.square().sum() for gradient in held]).sum()


def wrong_norms(strategy: Strategy) -> dict[str, float]:
    """Three norms that raise no error. Collective."""
    own = own_squares(strategy)
    with_copies = own.clone()
    dist.all_reduce(with_copies)
    of_norms = own.sqrt()
    dist.all_reduce(of_norms)
    return {
        "what this rank holds, alone": own.sqrt().item(),
        "squares of all ranks, copies counted again": with_copies.sqrt().item(),
        "norms of the ranks, added up": of_norms.item(),
    }


def compare(strategy: Strategy, cfg: Config) -> dict:
    """The norm of the first step's gradient beside one process, and the wrong ones."""
    strategy.step(0)
    expected = strategy.truth.norms[0]
    norm = global_norm(strategy)
    assert_equal(f"{strategy.name}: norm", norm, expected, cfg.tolerance)
    print_on_rank_0(f"{strategy.name}: the norm is {norm:.4f}, as in one process")
    wrong = wrong_norms(strategy)
    everyone = gather_on_rank_0(wrong)
    for what in wrong if everyone else ():
        values = sorted({f"{one[what]:.4f}" for one in everyone})
        print(f"    {what}: {', '.join(values)}")
    for what, value in wrong.items():
        if abs(value - expected.item()) < 1e-3:
            raise CourseError(f"{strategy.name}: {what}: {value:.6f} is too near to the right norm")
    return {"right": norm.item()} | wrong


class OwnRows(FsdpTp):
    """FSDP x TP whose data loader knows nothing of the mesh: each rank of the world reads rows of its own."""

    data = ("dp", "tp")


def rows_of_their_own(truths: Truths, group: Group, cfg: Config) -> str:
    """What the comparison with one process says of it."""
    strategy = OwnRows(truths.of(FsdpTp), group, cfg.table)
    step = strategy.finish_step(strategy.step(0))
    ours = [Step(step.loss, step.gradients)]
    alone = [Step(strategy.truth.steps[0].loss, strategy.truth.steps[0].gradients)]
    try:
        what = "each rank reads rows of its own"
        assert_same_training(what, ours, alone, cfg.tolerance, strategy.gradient_part)
    except ParityError as error:
        return str(error).split(" by ")[0]
    raise CourseError("rows of its own for each rank were to give another loss")


def clip_by_mesh(parameters: Iterable[nn.Parameter], max_norm: float) -> torch.Tensor:
    """As clip_grad_norm_, for DTensors on several meshes. Returns the norm before.

    Each mesh by itself, then the norm of these norms; and that one is what all are clipped by.
    """
    by_mesh: dict[DeviceMesh, list[nn.Parameter]] = {}
    for p in parameters:
        by_mesh.setdefault(p.grad.device_mesh, []).append(p)
    norms = []
    for of_mesh in by_mesh.values():
        norms.append(nn.utils.get_total_norm([p.grad for p in of_mesh]).full_tensor())
    norm = torch.stack(norms).norm()
    for of_mesh in by_mesh.values():
        nn.utils.clip_grads_with_norm_(of_mesh, max_norm, norm)
    return norm


def torchs_clipping(group: Group, cfg: Config) -> str:
    """clip_grad_norm_ where TP and FSDP have divided other parameters; its error, and what to do instead."""
    start = by_torch.one_truth(group, cfg.model)
    models = []
    for sizes in ({"dp": 1, "tp": 1}, {"dp": 2, "tp": group.world_size // 2}):
        model = by_torch.new_model(group, cfg.model, seed=0)
        model.load_state_dict(start)
        model, _ = by_torch.build(model, sizes, cfg.model)
        by_torch.backward(model, 0, sizes, group, cfg.model)
        models.append(model)
    alone, split = models
    expected = nn.utils.clip_grad_norm_(alone.parameters(), cfg.max_norm)
    parameters = list(split.parameters())
    try:
        nn.utils.clip_grad_norm_(parameters, cfg.max_norm)
        said = ""
    except RuntimeError as error:
        said = str(error).splitlines()[0]
    norm = clip_by_mesh(parameters, cfg.max_norm)
    assert_equal("norm, mesh by mesh", norm, expected, cfg.tolerance)
    clipped = [(name, p.grad.full_tensor()) for name, p in split.named_parameters()]
    assert_all_equal("clipped:", clipped, gradients(alone), cfg.tolerance)
    return said


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=4, largest=4) as group:
        truths = Truths(group, cfg.table)
        results = {}
        for row in (FsdpTp, Pp1F1B):
            results[row.name] = compare(row(truths.of(row), group, cfg.table), cfg)
        said = rows_of_their_own(truths, group, cfg)
        print_on_rank_0(said)
        error = torchs_clipping(group, cfg)
        print_on_rank_0(f"clip_grad_norm_, some parameters divided over dp, others over dp and tp: {error}")
        print_on_rank_0("mesh by mesh: norm and clipped gradients as in one process")
        record_results("lab_22_norm", {"norms": results, "rows": said, "error": error})


if __name__ == "__main__":
    run(main, Config())
