"""The norm of a gradient that many ranks hold: right over FSDP x TP and over PP, and ways to get it wrong.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_22/proof_norm.py
"""

import copy
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from shared.runtime.errors import CourseError, ParityError
from shared.runtime.group import Group, process_group
from shared.runtime.report import gather_on_rank_0, print_on_rank_0
from shared.runtime.run import run
from shared.training.one_process import Step, assert_same_training
from shared.training.parity import assert_equal
from shared.training.storages import local_of

from lab_22_torch import ROWS, WIDTH, Block
from lesson_22 import proof_load as by_torch
from lesson_22.proof_table import finish_step, global_norm, gradients_of
from lesson_22.rows import Config as TableConfig
from lesson_22.rows import Job, Row
from lesson_22.rows_pipeline import pp_1f1b
from lesson_22.rows_tensor import fsdp_tp
from lesson_22.strategies import Truths


@dataclass(frozen=True)
class Config:
    table: TableConfig = field(default_factory=TableConfig)
    model: by_torch.Config = field(default_factory=by_torch.Config)
    max_norm: float = 0.1  # less than the norm of two stages, so that it clips
    tolerance: float = 1e-12  # float64


def own_squares(row: Row) -> torch.Tensor:
    """The sum of the squares of all that this rank holds."""
    held = [local_of(gradient) for gradient in gradients_of(row).values()]
    return torch.stack([gradient.square().sum() for gradient in held]).sum()


def wrong_norms(row: Row) -> dict[str, float]:
    """Three norms that raise no error. Collective."""
    own = own_squares(row)
    with_copies = own.clone()
    dist.all_reduce(with_copies)
    of_norms = own.sqrt()
    dist.all_reduce(of_norms)
    return {
        "what this rank holds, alone": own.sqrt().item(),
        "squares of all ranks, copies counted again": with_copies.sqrt().item(),
        "norms of the ranks, added up": of_norms.item(),
    }


def compare(name: str, row: Row, job: Job, cfg: Config) -> None:
    """The norm of the first step's gradient beside one process, and the wrong ones."""
    row.step(0)
    expected = job.truth.norms[0]
    norm = global_norm(row, job)
    assert_equal(f"{name}: norm", norm, expected, cfg.tolerance)
    print_on_rank_0(f"{name}: the norm is {norm:.4f}, as in one process")
    wrong = wrong_norms(row)
    everyone = gather_on_rank_0(wrong)
    for what in wrong if everyone else ():
        values = sorted({f"{norms[what]:.4f}" for norms in everyone})
        print(f"    {what}: {', '.join(values)}")
    for what, value in wrong.items():
        if abs(value - expected.item()) < 1e-3:
            raise CourseError(f"{name}: {what}: {value:.6f} is too near to the right norm")


def rows_of_their_own(truths: Truths, cfg: Config) -> str:
    """FSDP x TP whose data loader goes by the rank of the world: what one process says of it."""
    what = "each rank reads rows of its own"
    job = truths.job(what)
    row = fsdp_tp(job, data=("dp", "tp"))
    step = finish_step(row, row.step(0))
    ours = [Step(step.loss, step.gradients)]
    alone = [Step(job.truth.steps[0].loss, job.truth.steps[0].gradients)]
    try:
        assert_same_training(what, ours, alone, cfg.tolerance, row.part)
    except ParityError as error:
        return str(error).split(" by ")[0]
    raise CourseError("rows of its own for each rank should give another loss")


def torchs_clipping(group: Group, cfg: Config) -> str:
    """What clip_grad_norm_ says where FSDP and TP have divided some parameters, FSDP alone the others."""
    trial = by_torch.new_trial(group, cfg.model)
    model = trial.model()
    mesh = by_torch.mesh_of({"dp": 2, "tp": group.world_size // 2}, group)
    by_torch.build(model, mesh, cfg.model)
    by_torch.loss_of_part(mesh, trial)(model, 0).backward()
    try:
        nn.utils.clip_grad_norm_(model.parameters(), cfg.model.max_norm)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""


class Stage(nn.Module):
    """A block, and a weight that both stages have, such as that of embedding and head."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.tied = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x) @ self.tied


def clipped_in_stages(group: Group, cfg: Config) -> None:
    """clip_by_mesh with a group along pp: two stages, each sharded by FSDP, beside one process."""
    torch.manual_seed(0)
    alone = nn.ModuleList([Stage() for _ in range(2)]).double().to(group.device)
    alone[1].tied = alone[0].tied
    rows = torch.randn(ROWS, WIDTH, dtype=torch.float64).to(group.device)
    mesh = init_device_mesh(group.device.type, (2, group.world_size // 2), mesh_dim_names=("pp", "dp"))
    mine = alone[mesh.get_local_rank("pp")]
    stage = copy.deepcopy(mine)
    fully_shard(stage, mesh=mesh["dp"])
    for part in (stage, *alone):  # a stage's gradients, in place of a pipeline that brings them
        part(rows).square().mean().backward()
    pp_group = mesh.get_group("pp")
    dist.all_reduce(local_of(stage.tied.grad), group=pp_group)
    counted_elsewhere = [stage.tied] if mesh.get_local_rank("pp") == 1 else []
    ours = by_torch.clip_by_mesh(stage.parameters(), cfg.max_norm, pp_group, counted_elsewhere)
    expected = nn.utils.clip_grad_norm_(alone.parameters(), cfg.max_norm)
    assert_equal("clipped in stages: norm", ours, expected, cfg.tolerance)
    for (name, p), truth in zip(stage.named_parameters(), mine.parameters(), strict=True):
        assert_equal(f"clipped in stages: {name}", by_torch.whole(p.grad), truth.grad, cfg.tolerance)
    torch.optim.SGD(stage.parameters(), lr=1.0).step()
    tied = local_of(stage.tied.detach())
    copies = [torch.empty_like(tied) for _ in range(2)]
    dist.all_gather(copies, tied, group=pp_group)
    assert_equal("clipped in stages: copies of the tied weight", *copies, 0.0)
    for p in alone.parameters():
        p.grad = None
    frozen = by_torch.clip_by_mesh(alone.parameters(), cfg.max_norm)
    assert_equal("all frozen: norm", frozen, torch.zeros_like(frozen), 0.0)
    print_on_rank_0(
        "clip_by_mesh, PP 2 x FSDP 2, a tied weight: norm and clipped gradients as in one process"
    )


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=4, largest=4) as group:
        truths = Truths(group, cfg.table)
        for name, build in (("FSDP x TP", fsdp_tp), ("PP, 1F1B", pp_1f1b)):
            job = truths.job(name)
            compare(name, build(job), job, cfg)
        print_on_rank_0(rows_of_their_own(truths, cfg))
        error = torchs_clipping(group, cfg)
        print_on_rank_0(f"clip_grad_norm_, some parameters divided over dp, others over dp and tp: {error}")
        clipped_in_stages(group, cfg)


if __name__ == "__main__":
    run(main, Config())
