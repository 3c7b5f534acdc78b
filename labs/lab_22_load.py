"""Save in one layout, load into another: torch.distributed.checkpoint cuts the tensors anew.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_22_load.py
Written by:  notebooks/22_device_mesh.ipynb
"""

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from lab_22_mesh import Sizes, part
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from shared.comm.broadcast import broadcast_from_rank_0
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results, results_folder
from shared.runtime.run import run
from shared.training.gpt import GPT, GPTConfig, loss_sum, token_batch
from shared.training.parity import assert_all_equal

# It warns that a tensor which is divided over two dimensions takes two all-gathers.
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)

WATCHED = "blocks.0.mlp.up.weight"  # its part on each rank is printed


@dataclass(frozen=True)
class Config:
    layers: int = 2
    rows: int = 2  # of the batch, for each rank of the world
    saved_after: int = 2  # steps
    more: int = 2
    lr: float = 0.01
    eps: float = 1e-4  # some gradients are rounding errors: Adam must not blow them up
    tolerance: float = 1e-12  # float64


def gpt_config(ranks: int, cfg: Config) -> GPTConfig:
    """Sizes that ``ranks`` divides."""
    return GPTConfig(16 * ranks, 8, 8 * ranks, 2 * ranks, cfg.layers)


def layouts(ranks: int) -> list[Sizes]:
    """All meshes of dp x tp; first the one that we save in: both dimensions where that is possible."""
    found = [{"dp": ranks // tp, "tp": tp} for tp in range(1, ranks + 1) if ranks % tp == 0]
    return sorted(found, key=lambda sizes: abs(sizes["dp"] - sizes["tp"]))


def in_words(sizes: Sizes) -> str:
    names = {"dp": "FSDP", "tp": "TP"}
    return " x ".join(f"{names[name]} {size}" for name, size in sizes.items() if size > 1) or "one process"


def build(model: GPT, sizes: Sizes, cfg: Config) -> tuple[GPT, torch.optim.Optimizer]:
    """Split a whole ``model`` over tp by torch's plan, then shard what is left on a rank over dp."""
    device = next(model.parameters()).device.type
    mesh = None
    if max(sizes.values()) > 1:
        mesh = init_device_mesh(device, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    if sizes["tp"] > 1:
        plan: dict = {"blocks.*.attention.out": RowwiseParallel(), "blocks.*.mlp.down": RowwiseParallel()}
        for name in ("attention.query", "attention.key", "attention.value", "mlp.up"):
            plan[f"blocks.*.{name}"] = ColwiseParallel()
        parallelize_module(model, mesh["tp"], plan)
        for block in model.blocks:
            block.attention.heads //= sizes["tp"]
    if sizes["dp"] > 1:
        for block in model.blocks:
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    return model, torch.optim.Adam(model.parameters(), cfg.lr, eps=cfg.eps)


def backward(model: GPT, number: int, sizes: Sizes, group: Group, cfg: Config) -> None:
    """Gradients of the mean over the whole batch, of which this rank reads the part of its place along dp."""
    tokens, labels = token_batch(model.cfg, cfg.rows * group.world_size, number)
    index, parts = part(group.rank, sizes, ["dp"]) if sizes["dp"] > 1 else (0, 1)
    own_tokens, own_labels = tokens.chunk(parts)[index], labels.chunk(parts)[index]
    logits = model(own_tokens.to(group.device))
    (loss_sum(logits, own_labels.to(group.device)) / own_labels.numel()).backward()


def train(model: GPT, optimizer, steps: range, sizes: Sizes, group: Group, cfg: Config) -> None:  # noqa: ANN001
    for number in steps:
        optimizer.zero_grad()
        backward(model, number, sizes, group, cfg)
        optimizer.step()


def whole(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """(name, all of the parameter). Collective."""
    found = []
    for name, p in model.named_parameters():
        found.append((name, p.detach().full_tensor() if isinstance(p, DTensor) else p.detach().clone()))
    return found


def local_shape(model: nn.Module) -> list[int]:
    p = dict(model.named_parameters())[WATCHED]
    return list((p.to_local() if isinstance(p, DTensor) else p).shape)


def one_truth(group: Group, cfg: Config) -> dict[str, torch.Tensor]:
    model = GPT(gpt_config(group.world_size, cfg)).to(group.device)
    broadcast_from_rank_0(model.parameters())
    return model.state_dict()


def new_model(group: Group, cfg: Config, seed: int) -> GPT:
    torch.manual_seed(seed)
    return GPT(gpt_config(group.world_size, cfg)).to(group.device)


def empty_folder(name: str, group: Group) -> Path:
    folder = results_folder() / "lab_22_load" / name
    if group.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
    dist.barrier()
    return folder


def save(start: dict, group: Group, cfg: Config) -> tuple[Path, list[tuple[str, torch.Tensor]]]:
    """Train in the first layout and save. The folder, and the whole parameters as they were then."""
    sizes = layouts(group.world_size)[0]
    model = new_model(group, cfg, seed=0)
    model.load_state_dict(start)
    model, optimizer = build(model, sizes, cfg)
    train(model, optimizer, range(cfg.saved_after), sizes, group, cfg)
    folder = empty_folder("shards", group)
    state, moments = get_state_dict(model, optimizer)
    dcp.save({"model": state, "optimizer": moments}, checkpoint_id=folder)
    files = len(list(folder.glob("*.distcp")))
    print_on_rank_0(
        f"saved by {in_words(sizes)}: {files} files; rank 0 had {local_shape(model)} of {WATCHED}"
    )
    return folder, whole(model)


def load(
    sizes: Sizes, folder: Path, saved: list, group: Group, cfg: Config
) -> list[tuple[str, torch.Tensor]]:
    """Load into this layout, compare with what was saved, train on; the whole parameters at the end."""
    model, optimizer = build(new_model(group, cfg, seed=1 + group.rank), sizes, cfg)
    state, moments = get_state_dict(model, optimizer)
    dcp.load({"model": state, "optimizer": moments}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state, optim_state_dict=moments)
    assert_all_equal(f"loaded into {in_words(sizes)}:", whole(model), saved, 0.0)
    shape = local_shape(model)
    more = range(cfg.saved_after, cfg.saved_after + cfg.more)
    train(model, optimizer, more, sizes, group, cfg)
    print_on_rank_0(f"loaded into {in_words(sizes)}: equal bit for bit; rank 0 has {shape} of {WATCHED}")
    return whole(model)


def plain_parts(group: Group) -> list[float]:
    """Each rank saves its part as a plain tensor, all under one name. What this rank gets back."""
    folder = empty_folder("plain", group)
    own = torch.full((2,), float(group.rank))  # part of one long vector, but nothing says so
    dcp.save({"weight": own}, checkpoint_id=folder)
    back = torch.full((2,), torch.nan)
    dcp.load({"weight": back}, checkpoint_id=folder)
    return back.tolist()


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        start = one_truth(group, cfg)
        alone = {"dp": 1, "tp": 1}
        model = new_model(group, cfg, seed=0)
        model.load_state_dict(start)
        model, optimizer = build(model, alone, cfg)
        train(model, optimizer, range(cfg.saved_after + cfg.more), alone, group, cfg)
        expected = whole(model)

        folder, saved = save(start, group, cfg)
        others = [*layouts(group.world_size)[1:], alone]
        for sizes in others:
            what = f"{in_words(sizes)}, {cfg.more} steps after loading:"
            assert_all_equal(what, load(sizes, folder, saved, group, cfg), expected, cfg.tolerance)
        print_on_rank_0(f"each: {cfg.more} steps more equal one process that was never interrupted")

        back = plain_parts(group)
        everyone = [back] * group.world_size
        dist.all_gather_object(everyone, back)
        print_on_rank_0(f"parts saved as plain tensors under one name; what the ranks get back: {everyone}")
        if len({tuple(one) for one in everyone}) != 1:
            raise CourseError(f"one part was to be kept and the others lost: {everyone}")
        record_results("lab_22_load", {"layouts": [in_words(sizes) for sizes in others], "plain": back})


if __name__ == "__main__":
    run(main, Config())
