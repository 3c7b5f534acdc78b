"""Load on another number of ranks what lab_19_state.py saved, and go on training.

Run it:      torchrun --standalone --nproc-per-node=3 labs/lab_19_load.py
Written by:  notebooks/19_fsdp.ipynb (edit it there)
"""

from dataclasses import dataclass

import torch
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from shared.runtime.errors import InputError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.results import results_folder
from shared.runtime.run import run
from shared.training.checkpoint import load_checkpoint
from shared.training.data import batch, load_images
from shared.training.models import BlockNet
from shared.training.parity import assert_all_equal, parameters


@dataclass(frozen=True)
class Config:
    seed: int = 19
    saved_after: int = 3  # steps, as in lab_19_state.py
    steps: int = 2  # more of them
    global_batch: int = 840  # divides by every world size up to 8
    tolerance: float = 1e-12  # float64


def prepare(seed: int, group: Group, mesh: DeviceMesh | None) -> tuple[BlockNet, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    net = BlockNet().double().to(group.device)
    if mesh is not None:
        for block in net.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(net, mesh=mesh)
    return net, torch.optim.Adam(net.parameters(), 1e-3, eps=1e-4)


def train(model, optimizer, steps: range, part: slice, cfg: Config, group: Group) -> None:
    for step in steps:
        x, y = batch(load_images(), step, cfg.global_batch, group.device)
        optimizer.zero_grad()
        F.cross_entropy(model(x[part]), y[part]).backward()
        optimizer.step()


def reference(cfg: Config, group: Group) -> BlockNet:
    """One process that was never interrupted."""
    net, optimizer = prepare(cfg.seed, group, None)
    train(net, optimizer, range(cfg.saved_after + cfg.steps), slice(None), cfg, group)
    return net


def unsharded(model: BlockNet) -> list[tuple[str, torch.Tensor]]:
    return [(name, p.full_tensor()) for name, p in model.named_parameters()]


def main(cfg: Config) -> None:
    with process_group(timeout_s=60) as group:
        folder = results_folder() / "lab_19_state"
        if not (folder / "shards" / ".metadata").exists():
            raise InputError("there is nothing to load: run lab_19_state.py first")
        mesh = init_device_mesh(group.device.type, (group.world_size,))

        # The whole file. All read it, to compare below; shards come from rank 0.
        model, _ = prepare(cfg.seed + 1 + group.rank, group, mesh)
        saved = load_checkpoint(folder / "full.pt", group.device)["model"]
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        given = dict(saved) if group.rank == 0 else {}  # a copy: its tensors are replaced by shards
        set_model_state_dict(model, given, options=options)
        assert_all_equal("whole file", unsharded(model), saved.items(), 0.0)
        print_on_rank_0(f"whole file of rank 0: loaded by {group.world_size} ranks, equal bit for bit")

        # The shards: each rank reads what it needs, whoever wrote it.
        model, optimizer = prepare(cfg.seed + 1 + group.rank, group, mesh)
        state, moments = get_state_dict(model, optimizer)
        dcp.load({"model": state, "optimizer": moments}, checkpoint_id=folder / "shards")
        set_state_dict(model, optimizer, model_state_dict=state, optim_state_dict=moments)
        assert_all_equal("shards", unsharded(model), saved.items(), 0.0)
        files = len(list((folder / "shards").glob("*.distcp")))
        rows = model.blocks[0].up.weight.to_local().shape[0]
        print_in_rank_order(f"shards of {files} ranks: loaded, {rows} of 192 rows of a weight")

        mine = slice(group.rank, None, group.world_size)
        more = range(cfg.saved_after, cfg.saved_after + cfg.steps)
        train(model, optimizer, more, mine, cfg, group)
        assert_all_equal(
            "after more steps", unsharded(model), parameters(reference(cfg, group)), cfg.tolerance
        )
        print_on_rank_0(f"{cfg.steps} steps more: equal to one process that was never interrupted")


if __name__ == "__main__":
    run(main, Config())
