"""Experts in a checkpoint: plain parts of one name overwrite each other; as DTensors along ep, all are kept.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_21/proof_checkpoint.py
"""

import copy
import shutil
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

from shared.comm.broadcast import broadcast_from_rank_0
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import results_folder
from shared.runtime.run import run
from shared.training.parity import assert_all_equal, assert_equal

from lab_21_fsdp import exchange_rows
from lab_21_moe import ExpertParallelMoE, Experts, MoE


@dataclass(frozen=True)
class Config:
    width: int = 8
    experts_per_rank: int = 2
    tokens: int = 16  # on each rank
    tolerance: float = 1e-12


class ExpertsAlongEp(Experts):
    """The same experts, but a checkpoint knows that they are a part along ep. They compute as before."""

    def __init__(self, own: Experts, ep: DeviceMesh) -> None:
        up, down = own.up.detach(), own.down.detach()
        super().__init__(DTensor.from_local(up, ep, [Shard(0)]), DTensor.from_local(down, ep, [Shard(0)]))

    def forward(self, rows: torch.Tensor, load: list[int]) -> torch.Tensor:
        parts = []
        for part, up, down in zip(rows.split(load), self.up.to_local(), self.down.to_local(), strict=True):
            parts.append(F.gelu(part @ up) @ down)
        return torch.cat(parts)


def sharded(whole: MoE, mesh: DeviceMesh, along_ep: bool) -> ExpertParallelMoE:
    """``whole`` over ep, and its experts sharded along efsdp. The router stays as it is."""
    layer = ExpertParallelMoE(copy.deepcopy(whole), mesh["ep"].get_group(), exchange_rows)
    if along_ep:
        layer.experts = ExpertsAlongEp(layer.experts, mesh["ep"])
    fully_shard(layer.experts, mesh=mesh["efsdp"])
    layer.experts.set_gradient_divide_factor(1.0)
    layer.experts.set_force_sum_reduction_for_comms(True)
    return layer


def save_and_load(saved: dict[str, torch.Tensor], loaded: dict[str, torch.Tensor], group: Group) -> None:
    """``loaded`` is filled in place. Collective."""
    folder = results_folder() / "21_checkpoint"
    dcp.save(saved, checkpoint_id=folder)
    dcp.load(loaded, checkpoint_id=folder)
    dist.barrier()
    if group.rank == 0:
        shutil.rmtree(folder)


def check_as_it_is(whole: MoE, mesh: DeviceMesh, group: Group) -> int:
    """How many ranks get their own experts back, if each saves its own under the same name."""
    saved = dict(sharded(whole, mesh, along_ep=False).experts.named_parameters())
    loaded = {name: torch.zeros_like(p) for name, p in saved.items()}
    save_and_load(saved, loaded, group)
    own = torch.equal(saved["up"].to_local(), loaded["up"].to_local())
    equal = torch.tensor(int(own), device=group.device)
    dist.all_reduce(equal)
    if equal != mesh["efsdp"].size():
        raise CourseError(f"{equal} ranks got their own experts back, expected one of each group along ep")
    return int(equal)


def check_along_ep(whole: MoE, mesh: DeviceMesh, group: Group, cfg: Config) -> None:
    """Output as in one process; parameters and gradients, too, when they come back from a checkpoint."""
    every_x = torch.randn(group.world_size, cfg.tokens, cfg.width, dtype=torch.float64, device=group.device)
    dist.broadcast(every_x, src=0)
    y_alone = whole(every_x)
    y_alone.square().sum().backward()
    layer = sharded(whole, mesh, along_ep=True)
    y = layer(every_x[group.rank])
    y.square().sum().backward()
    assert_equal("experts along ep: output", y, y_alone[group.rank], cfg.tolerance)
    saved = {}
    expected = {}
    for (name, p), alone in zip(layer.experts.named_parameters(), whole.experts.parameters(), strict=True):
        if p.shape != alone.shape:
            raise CourseError(f"{name}: a checkpoint would know {tuple(p.shape)}, not {tuple(alone.shape)}")
        saved |= {name: p.detach(), f"gradient of {name}": p.grad}
        expected |= {name: alone.detach(), f"gradient of {name}": alone.grad}
    loaded = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    save_and_load(saved, loaded, group)
    assert_all_equal("experts along ep, loaded:", loaded.items(), expected.items(), cfg.tolerance)


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        ranks = group.world_size
        ep = ranks if ranks % 2 else 2
        mesh = init_device_mesh(group.device.type, (ranks // ep, ep), mesh_dim_names=("efsdp", "ep"))
        experts = cfg.experts_per_rank * ranks
        whole = MoE(cfg.width, 4 * cfg.width, experts, dtype=torch.float64).to(group.device)
        broadcast_from_rank_0(whole.parameters())
        back = check_as_it_is(whole, mesh, group)
        print_on_rank_0(f"experts saved as they are: {back} of {ranks} ranks get their own back")
        check_along_ep(whole, mesh, group, cfg)
        print_on_rank_0("as DTensors along ep: all come back; output and gradients equal one process")


if __name__ == "__main__":
    run(main, Config())
