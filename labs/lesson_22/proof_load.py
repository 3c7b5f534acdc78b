"""FSDP x TP x SP by torch, clipped, saved and loaded into other layouts: after each step as one process.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_22/proof_load.py

It begins with the proof of lab_22_torch.py.
"""

import copy
import logging
import shutil
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import results_folder
from shared.runtime.run import run
from shared.training.gpt import GPT, GPTConfig, loss_sum
from shared.training.one_process import Step, assert_same_training, train_steps
from shared.training.parity import assert_all_equal
from shared.training.trial import LossOf, Trial

from lab_22_mesh import Sizes
from lab_22_torch import ROWS, WIDTH, Block, parallelize, train_step
from lesson_19.sharding import shard_units

# It warns that a tensor which is divided over two dimensions takes two all-gathers.
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
# The logits are a view of a DTensor's local tensor. Nobody here changes them in place.
warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")

WATCHED = "blocks.0.mlp.down.weight"  # FSDP divides its rows, TP its columns


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

    @property
    def steps(self) -> int:
        return self.saved_after + self.more


def gpt_config(ranks: int, cfg: Config) -> GPTConfig:
    """Sizes that ``ranks`` divides."""
    return GPTConfig(16 * ranks, 8 * ranks, 8 * ranks, 2 * ranks, cfg.layers)


def new_trial(group: Group, cfg: Config) -> Trial:
    """The batch is that of all ranks together."""
    return Trial(gpt_config(group.world_size, cfg), group, replace(cfg, rows=cfg.rows * group.world_size))


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
        shard_units(model, mesh["dp"])
    # Without FSDP the positions stay a plain tensor: foreach, the default on GPUs, refuses to mix it in.
    return torch.optim.Adam(model.parameters(), cfg.lr, eps=cfg.eps, foreach=False)


def clip_by_mesh(
    parameters: Iterable[nn.Parameter],
    max_norm: float,
    pp_group: dist.ProcessGroup | None = None,
    counted_elsewhere: Iterable[nn.Parameter] = (),
) -> torch.Tensor:
    """As clip_grad_norm_, for DTensors on several meshes, and for the stage of a pipeline.

    Returns the norm before. The norm of each mesh comes from torch; all are clipped by the norm of them all.
    Parameters in ``counted_elsewhere`` are clipped too, but another stage counts them in the norm.
    Not for parts that DTensor does not know as such: experts cut along ep by hand, parts as plain tensors.
    """
    parameters = list(parameters)
    elsewhere = {id(p) for p in counted_elsewhere}
    by_mesh: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for p in parameters:
        if p.grad is not None:  # else it is frozen
            by_mesh.setdefault(getattr(p.grad, "device_mesh", None), []).append(p)
    dtype = torch.promote_types(parameters[0].dtype, torch.float32)  # squares need more than bfloat16
    square = torch.zeros((), dtype=dtype, device=parameters[0].device)
    for of_mesh in by_mesh.values():
        counted = [p.grad for p in of_mesh if id(p) not in elsewhere]
        if counted:
            norm = nn.utils.get_total_norm(counted)
            square += (norm.full_tensor() if isinstance(norm, DTensor) else norm).to(dtype).square()
    if pp_group is not None:
        dist.all_reduce(square, group=pp_group)
    norm = square.sqrt()
    for of_mesh in by_mesh.values():
        nn.utils.clip_grads_with_norm_(of_mesh, max_norm, norm)
    return norm


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor. Collective."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def loss_of_part(mesh: DeviceMesh | None, trial: Trial, first: int = 0) -> LossOf:
    """The mean over the rows of this rank's place along dp; steps are counted from ``first``."""
    index, parts = (0, 1) if mesh is None else (mesh.get_local_rank("dp"), mesh["dp"].size())

    def loss_of(model: GPT, number: int) -> torch.Tensor:
        tokens, labels = (tensor.chunk(parts)[index] for tensor in trial.batch(first + number))
        return loss_sum(model(tokens), labels) / labels.numel()

    return loss_of


def train(
    model: GPT,
    optimizer: torch.optim.Optimizer,
    steps: range,
    mesh: DeviceMesh | None,
    trial: Trial,
    cfg: Config,
) -> list[Step]:
    """What each step leaves behind: the loss, clipped gradients and parameters, all of them whole."""

    def clip(gpt: nn.Module, loss: torch.Tensor) -> None:
        norm = clip_by_mesh(gpt.parameters(), cfg.max_norm)
        if norm < cfg.max_norm:
            raise CourseError(f"a norm of {norm:.3f}: nothing was clipped")
        dist.all_reduce(loss)
        loss /= trial.group.world_size

    done = train_steps(model, optimizer, loss_of_part(mesh, trial, steps.start), len(steps), clip)
    for step in done:
        for tensors in (step.gradients, step.parameters):
            for name, tensor in tensors.items():
                tensors[name] = whole(tensor)
    return done


def train_alone(trial: Trial, cfg: Config) -> list[Step]:
    """The same in one process, clipped by torch."""
    model = trial.model()
    optimizer = torch.optim.Adam(model.parameters(), cfg.lr, eps=cfg.eps)

    def clip(gpt: nn.Module, _: torch.Tensor) -> None:
        nn.utils.clip_grad_norm_(gpt.parameters(), cfg.max_norm)

    return train_steps(model, optimizer, loss_of_part(None, trial), cfg.steps, clip)


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


def empty_folder(name: str, group: Group) -> Path:
    folder = results_folder() / "proof_load" / name
    if group.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
    dist.barrier()
    return folder


def save(trial: Trial, alone: list[Step], cfg: Config) -> tuple[Path, list]:
    """Train in the first layout and save. The folder, and the whole parameters as they were then."""
    group = trial.group
    sizes = layouts(group.world_size)[0]
    mesh = mesh_of(sizes, group)
    model = trial.model()
    optimizer = build(model, mesh, cfg)
    ours = train(model, optimizer, range(cfg.saved_after), mesh, trial, cfg)
    assert_same_training(in_words(sizes), ours, alone[: cfg.saved_after], cfg.tolerance)
    folder = empty_folder("shards", group)
    state, moments = get_state_dict(model, optimizer)
    dcp.save({"model": state, "optimizer": moments}, checkpoint_id=folder)
    files = len(list(folder.glob("*.distcp")))
    print_on_rank_0(f"{in_words(sizes)}, clipped: as one process after each of {cfg.saved_after} steps")
    print_on_rank_0(f"saved in {files} files; rank 0 had {local_shape(model)} of {WATCHED}")
    return folder, parameters(model)


def load(sizes: Sizes, folder: Path, saved: list, alone: list[Step], trial: Trial, cfg: Config) -> None:
    """Load into this layout, compare with what was saved, train on beside one process."""
    mesh = mesh_of(sizes, trial.group)
    model = trial.new()
    optimizer = build(model, mesh, cfg)
    state, moments = get_state_dict(model, optimizer)
    dcp.load({"model": state, "optimizer": moments}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state, optim_state_dict=moments)
    assert_all_equal(f"loaded into {in_words(sizes)}:", parameters(model), saved, 0.0)
    print_on_rank_0(f"loaded into {in_words(sizes)}: equal bit for bit; rank 0 has {local_shape(model)}")
    ours = train(model, optimizer, range(cfg.saved_after, cfg.steps), mesh, trial, cfg)
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
        trial = new_trial(group, cfg)
        alone = train_alone(trial, cfg)
        folder, saved = save(trial, alone, cfg)
        others = [*layouts(group.world_size)[1:], {"dp": 1, "tp": 1}]
        for sizes in others:
            load(sizes, folder, saved, alone, trial, cfg)
        print_on_rank_0(f"each: {cfg.more} steps more, as one process that was never interrupted")

        back = plain_parts(group)
        everyone = [back] * group.world_size
        dist.all_gather_object(everyone, back)
        print_on_rank_0(f"parts saved as plain tensors under one name; what the ranks get back: {everyone}")
        if len({tuple(values) for values in everyone}) != 1:
            raise CourseError(f"one part should be kept and the others lost: {everyone}")


if __name__ == "__main__":
    run(main, Config())
