"""FSDP x TP x SP by torch, clipped, saved and loaded into other layouts: after each step as one process.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_22/proof_load.py

It begins with the proof of lab_22_torch.py.
"""

import copy
import logging
import shutil
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from shared.comm.broadcast import broadcast_from_rank_0
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results, results_folder
from shared.runtime.run import run
from shared.training.gpt import GPT, GPTConfig, loss_sum, token_batch
from shared.training.one_process import Step, assert_same_training
from shared.training.parity import assert_all_equal

from lab_22_mesh import Sizes
from lab_22_torch import ROWS, WIDTH, Block, parallelize, train_step

# It warns that a tensor which is divided over two dimensions takes two all-gathers.
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
# The logits are a view of a DTensor's local tensor. Nobody here changes them in place.
warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")

WATCHED = "blocks.0.mlp.up.weight"  # its part on each rank is printed


@dataclass(frozen=True)
class Config:
    layers: int = 2
    rows: int = 2  # of the batch, for each rank of the world
    saved_after: int = 2  # steps
    more: int = 2
    lr: float = 0.01
    eps: float = 1e-4  # some gradients are rounding errors: Adam must not blow them up
    max_norm: float = 0.5  # less than any norm here, so that clipping matters
    tolerance: float = 1e-12  # float64


def gpt_config(ranks: int, cfg: Config) -> GPTConfig:
    """Sizes that ``ranks`` divides."""
    return GPTConfig(16 * ranks, 8 * ranks, 8 * ranks, 2 * ranks, cfg.layers)


def layouts(ranks: int) -> list[Sizes]:
    """All meshes of dp x tp; first the one that we save in: both dimensions where that is possible."""
    meshes = [{"dp": ranks // tp, "tp": tp} for tp in range(1, ranks + 1) if ranks % tp == 0]
    return sorted(meshes, key=lambda sizes: abs(sizes["dp"] - sizes["tp"]))


def in_words(sizes: Sizes) -> str:
    names = {"dp": "FSDP", "tp": "TP and SP"}
    return " x ".join(f"{names[name]} {size}" for name, size in sizes.items() if size > 1) or "one process"


def split_layers(model: GPT, mesh: DeviceMesh) -> None:
    """TP and SP of lesson 17, by torch's plan. Between the split layers a rank has a part of the sequence."""
    part, all_of_it = Shard(1), Replicate()
    plan: dict = {
        "tokens": RowwiseParallel(input_layouts=all_of_it, output_layouts=part),
        "positions": PrepareModuleOutput(output_layouts=all_of_it, desired_output_layouts=Shard(0)),
        "blocks.*.norm1": SequenceParallel(),
        "blocks.*.attention": PrepareModuleInput(input_layouts=part, desired_input_layouts=all_of_it),
        "blocks.*.attention.out": RowwiseParallel(output_layouts=part),
        "blocks.*.norm2": SequenceParallel(),
        "blocks.*.mlp.up": ColwiseParallel(input_layouts=part),
        "blocks.*.mlp.down": RowwiseParallel(output_layouts=part),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=part, output_layouts=all_of_it),
    }
    for name in ("query", "key", "value"):
        plan[f"blocks.*.attention.{name}"] = ColwiseParallel()
    parallelize_module(model, mesh, plan)
    for block in model.blocks:
        block.attention.heads //= mesh.size()
    model.head.weight = model.tokens.weight  # parallelize_module has made two parameters of one


def build(model: GPT, mesh: DeviceMesh | None, cfg: Config) -> torch.optim.Optimizer:
    """Split a whole ``model`` over tp, then shard what is left on a rank over dp."""
    if mesh is not None and mesh["tp"].size() > 1:
        split_layers(model, mesh["tp"])
    if mesh is not None and mesh["dp"].size() > 1:
        for block in model.blocks:
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    # Some parameters lie on dp x tp, others on dp alone: foreach, the default on GPUs, refuses the mix.
    return torch.optim.Adam(model.parameters(), cfg.lr, eps=cfg.eps, foreach=False)


def clip_by_mesh(parameters: Iterable[nn.Parameter], max_norm: float) -> torch.Tensor:
    """As clip_grad_norm_, for DTensors on several meshes. Returns the norm before.

    Each mesh by itself, then the norm of these norms; and that one is what all are clipped by.
    """
    by_mesh: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for p in parameters:
        by_mesh.setdefault(p.grad.device_mesh if isinstance(p.grad, DTensor) else None, []).append(p)
    norms = [whole(nn.utils.get_total_norm([p.grad for p in of_mesh])) for of_mesh in by_mesh.values()]
    norm = torch.stack(norms).norm()
    for of_mesh in by_mesh.values():
        nn.utils.clip_grads_with_norm_(of_mesh, max_norm, norm)
    return norm


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor. Collective."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def backward(model: GPT, number: int, mesh: DeviceMesh | None, group: Group, cfg: Config) -> torch.Tensor:
    """Gradients of the mean over the whole batch, of which this rank reads the part of its place along dp."""
    tokens, labels = token_batch(model.cfg, cfg.rows * group.world_size, number)
    if mesh is not None:
        index, parts = mesh.get_local_rank("dp"), mesh["dp"].size()
        tokens, labels = tokens.chunk(parts)[index], labels.chunk(parts)[index]
    logits = model(tokens.to(group.device))
    loss = loss_sum(logits, labels.to(group.device)) / labels.numel()
    loss.backward()
    return loss.detach()


def train(
    model: GPT,
    optimizer: torch.optim.Optimizer,
    steps: range,
    mesh: DeviceMesh | None,
    group: Group,
    cfg: Config,
) -> list[Step]:
    """What each step leaves behind: the loss, clipped gradients and parameters, all of them whole."""
    done = []
    for number in steps:
        optimizer.zero_grad()
        loss = backward(model, number, mesh, group, cfg)
        norm = clip_by_mesh(model.parameters(), cfg.max_norm)
        if norm < cfg.max_norm:
            raise CourseError(f"a norm of {norm:.3f}: nothing was clipped")
        optimizer.step()
        dist.all_reduce(loss)
        gradients = {name: whole(p.grad).clone() for name, p in model.named_parameters()}
        done.append(Step(loss / group.world_size, gradients, dict(parameters(model))))
    return done


def train_alone(model: GPT, steps: range, group: Group, cfg: Config) -> list[Step]:
    """The same in one process, clipped by torch."""
    optimizer = torch.optim.Adam(model.parameters(), cfg.lr, eps=cfg.eps)
    done = []
    for number in steps:
        optimizer.zero_grad()
        loss = backward(model, number, None, group, cfg)
        nn.utils.clip_grad_norm_(model.parameters(), cfg.max_norm)
        optimizer.step()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        done.append(Step(loss, gradients, dict(parameters(model))))
    return done


def parameters(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """(name, all of the parameter). Collective."""
    return [(name, whole(p.detach()).clone()) for name, p in model.named_parameters()]


def local_shape(model: nn.Module) -> list[int]:
    p = dict(model.named_parameters())[WATCHED]
    return list((p.to_local() if isinstance(p, DTensor) else p).shape)


def mesh_of(sizes: Sizes, group: Group) -> DeviceMesh | None:
    if max(sizes.values()) == 1:
        return None
    return init_device_mesh(group.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def one_truth(group: Group, cfg: Config) -> dict[str, torch.Tensor]:
    model = GPT(gpt_config(group.world_size, cfg)).to(group.device)
    broadcast_from_rank_0(model.parameters())
    return model.state_dict()


def new_model(group: Group, cfg: Config, start: dict | None = None) -> GPT:
    """With numbers of this rank's own, or with those of ``start``."""
    torch.manual_seed(1 + group.rank)
    model = GPT(gpt_config(group.world_size, cfg)).to(group.device)
    if start is not None:
        model.load_state_dict(start)
    return model


def empty_folder(name: str, group: Group) -> Path:
    folder = results_folder() / "proof_load" / name
    if group.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
    dist.barrier()
    return folder


def save(start: dict, alone: list[Step], group: Group, cfg: Config) -> tuple[Path, list]:
    """Train in the first layout and save. The folder, and the whole parameters as they were then."""
    sizes = layouts(group.world_size)[0]
    mesh = mesh_of(sizes, group)
    model = new_model(group, cfg, start)
    optimizer = build(model, mesh, cfg)
    ours = train(model, optimizer, range(cfg.saved_after), mesh, group, cfg)
    assert_same_training(in_words(sizes), ours, alone[: cfg.saved_after], cfg.tolerance)
    folder = empty_folder("shards", group)
    state, moments = get_state_dict(model, optimizer)
    dcp.save({"model": state, "optimizer": moments}, checkpoint_id=folder)
    files = len(list(folder.glob("*.distcp")))
    print_on_rank_0(f"{in_words(sizes)}, clipped: as one process after each of {cfg.saved_after} steps")
    print_on_rank_0(f"saved in {files} files; rank 0 had {local_shape(model)} of {WATCHED}")
    return folder, parameters(model)


def load(sizes: Sizes, folder: Path, saved: list, alone: list[Step], group: Group, cfg: Config) -> None:
    """Load into this layout, compare with what was saved, train on beside one process."""
    mesh = mesh_of(sizes, group)
    model = new_model(group, cfg)
    optimizer = build(model, mesh, cfg)
    state, moments = get_state_dict(model, optimizer)
    dcp.load({"model": state, "optimizer": moments}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state, optim_state_dict=moments)
    assert_all_equal(f"loaded into {in_words(sizes)}:", parameters(model), saved, 0.0)
    print_on_rank_0(f"loaded into {in_words(sizes)}: equal bit for bit; rank 0 has {local_shape(model)}")
    more = range(cfg.saved_after, cfg.saved_after + cfg.more)
    ours = train(model, optimizer, more, mesh, group, cfg)
    assert_same_training(f"{in_words(sizes)}, after loading", ours, alone[cfg.saved_after :], cfg.tolerance)


def plain_parts(group: Group) -> list[float]:
    """Each rank saves its part as a plain tensor, all under one name. What this rank gets back."""
    folder = empty_folder("plain", group)
    own = torch.full((2,), float(group.rank))  # part of one long vector, but nothing says so
    dcp.save({"weight": own}, checkpoint_id=folder)
    back = torch.full((2,), torch.nan)
    dcp.load({"weight": back}, checkpoint_id=folder)
    return back.tolist()


def prove_the_open_script(group: Group, cfg: Config) -> None:
    """lab_22_torch in float64: loss, clipped gradients and parameters after each step, beside one process."""
    sizes = layouts(group.world_size)[0]
    mesh = mesh_of(sizes, group)
    torch.manual_seed(0)
    alone = nn.Sequential(Block(), Block()).double().to(group.device)
    dp = mesh["dp"]
    batch = torch.randn(ROWS * dp.size(), WIDTH, dtype=torch.float64).to(group.device)
    model = copy.deepcopy(alone)
    parallelize(model, mesh)
    rows = batch.chunk(dp.size())[dp.get_local_rank()]
    own_optimizer = torch.optim.AdamW(model.parameters(), cfg.lr)
    optimizer = torch.optim.AdamW(alone.parameters(), cfg.lr)
    ours, expected = [], []
    for _ in range(cfg.saved_after):
        loss = train_step(model, own_optimizer, rows)
        dist.all_reduce(loss)
        gradients = {name: whole(p.grad).clone() for name, p in model.named_parameters()}
        ours.append(Step(loss / group.world_size, gradients, dict(parameters(model))))
        loss = train_step(alone, optimizer, batch)
        gradients = {name: p.grad.clone() for name, p in alone.named_parameters()}
        expected.append(Step(loss, gradients, dict(parameters(alone))))
    assert_same_training("lab_22_torch", ours, expected, cfg.tolerance)
    print_on_rank_0(f"lab_22_torch on {sizes}: as one process after each of {cfg.saved_after} steps")


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        prove_the_open_script(group, cfg)
        start = one_truth(group, cfg)
        steps = range(cfg.saved_after + cfg.more)
        alone = train_alone(new_model(group, cfg, start), steps, group, cfg)
        folder, saved = save(start, alone, group, cfg)
        others = [*layouts(group.world_size)[1:], {"dp": 1, "tp": 1}]
        for sizes in others:
            load(sizes, folder, saved, alone, group, cfg)
        print_on_rank_0(f"each: {cfg.more} steps more, as one process that was never interrupted")

        back = plain_parts(group)
        everyone = [back] * group.world_size
        dist.all_gather_object(everyone, back)
        print_on_rank_0(f"parts saved as plain tensors under one name; what the ranks get back: {everyone}")
        if len({tuple(values) for values in everyone}) != 1:
            raise CourseError(f"one part was to be kept and the others lost: {everyone}")
        record_results("22_load", {"layouts": [in_words(sizes) for sizes in others], "plain": back})


if __name__ == "__main__":
    run(main, Config())
