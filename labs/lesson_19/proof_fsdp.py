"""fully_shard equals one process after every step, HSDP and FSDP1 too, and so does the script.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_19/proof_fsdp.py
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from shared.comm.broadcast import broadcast_from_rank_0
from shared.comm.record import CommRecord, record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run
from shared.training.data import Images, batch, load_images, shareable
from shared.training.models import Block, BlockNet
from shared.training.parity import assert_all_equal

import lab_19_torch as script
from lesson_19.sharding import shard_units


@dataclass(frozen=True)
class Config:
    seed: int = 19
    steps: int = 4
    global_batch: int = 100  # images, or some more
    tolerance: float = 1e-12  # float64
    script_tolerance: float = 2e-6  # shards of float32
    slack: float = 0.03  # some ranks hold rows more or less than others, as a fraction of a share


def ddp(net: BlockNet, mesh: DeviceMesh) -> nn.Module:
    return DistributedDataParallel(net, process_group=mesh.get_group())


def fsdp2(net: BlockNet, mesh: DeviceMesh) -> nn.Module:
    """Each block is a unit, the root is one with first and last layer."""
    return shard_units(net, mesh)


def fsdp1(net: BlockNet, mesh: DeviceMesh) -> nn.Module:
    """The policy says which modules become units. On a CPU it wants to be told the device."""
    return FullyShardedDataParallel(
        net,
        process_group=mesh.get_group(),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=next(net.parameters()).device,
        use_orig_params=True,  # parameters keep their names
    )


def unsharded(t: torch.Tensor) -> torch.Tensor:
    """The whole of a DTensor, gathered from all ranks; any other tensor as it is."""
    return t.full_tensor() if isinstance(t, DTensor) else t.detach()


def full_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and gradients as one process has them. Collective."""
    if isinstance(model, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(model, with_grads=True):
            for name, p in model.named_parameters():
                yield name, p.detach().clone()
                yield f"{name} gradient", p.grad.clone()
    else:
        for name, p in model.named_parameters():
            name = name.removeprefix("module.")
            yield name, unsharded(p)
            yield f"{name} gradient", unsharded(p.grad)


def stored(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the storages behind ``tensors``, each once. Of a DTensor only this rank's part is there."""
    storages = [(t.to_local() if isinstance(t, DTensor) else t).untyped_storage() for t in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def held(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of parameters, gradients and Adam's moments, which this rank keeps from step to step."""
    moments = [state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return stored(model.parameters()) + stored(gradients) + stored(moments)


def train(wrap: Callable, mesh: DeviceMesh, data: Images, size: int, cfg: Config) -> tuple[int, CommRecord]:
    """Train beside one process that has the whole batch, and compare.

    Returns the bytes that this rank holds, and what it called in the last forward and backward.
    """
    device = torch.device(mesh.device_type)
    torch.manual_seed(cfg.seed)
    alone = BlockNet().double().to(device)
    torch.manual_seed(cfg.seed + dist.get_rank())
    net = BlockNet().double().to(device)  # another one on each rank
    broadcast_from_rank_0(net.parameters())  # of the three, only DDP would do that itself
    model = wrap(net, mesh)
    # Adam divides by the gradient's size plus eps: 1e-8 would enlarge rounding errors of tiny gradients.
    ours = torch.optim.Adam(model.parameters(), 1e-3, eps=1e-4)
    theirs = torch.optim.Adam(alone.parameters(), 1e-3, eps=1e-4)
    mine = slice(dist.get_rank(), None, mesh.size())
    for step in range(cfg.steps):
        x, y = batch(data, step, size, device)
        ours.zero_grad()
        with record() as log:
            F.cross_entropy(model(x[mine]), y[mine]).backward()
        ours.step()
        theirs.zero_grad()
        F.cross_entropy(alone(x), y).backward()
        theirs.step()
        what = f"{wrap.__name__}, {mesh.size()} ranks, step {step}:"
        assert_all_equal(what, full_tensors(model), full_tensors(alone), cfg.tolerance)
    return held(model, ours), log


def check_share(name: str, size: int, share: float, slack: float) -> None:
    if not 1 - 2 * slack <= size / share <= 1 + slack:  # the last rank may lack several rows
        raise CourseError(f"{name}: {size / share:.3f} times the bytes of its share")


def hsdp(data: Images, size: int, everything: int, cfg: Config) -> None:
    """Two replicas, each sharded over half of the ranks: shards are all-reduced between the replicas."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    names = ("replicate", "shard")
    mesh = init_device_mesh(device, (2, dist.get_world_size() // 2), mesh_dim_names=names)
    kept, log = train(fsdp2, mesh, data, size, cfg)
    check_share("HSDP", kept, everything / mesh.size(1), cfg.slack)
    units = log.count("reduce_scatter")
    between = {len(call.ranks) for call in log.of("all_reduce")}
    within = {len(call.ranks) for call in log.of("reduce_scatter", "all_gather")}
    if log.count("all_reduce") != units or (between, within) != ({2}, {mesh.size(1)}):
        raise CourseError(f"HSDP: {dict(log.counts())}, among {between} and {within} ranks")
    print_on_rank_0(
        f"HSDP, 2 replicas x {mesh.size(1)} shards: equal one process; bytes per rank: "
        f"{kept:,}; {units} reduce-scatters within a replica, {units} all-reduces between them"
    )


def backward_in_pairs(group: Group) -> None:
    """``reshard_after_forward=2``: after the forward pass a pair of ranks holds the unit together."""
    mesh = init_device_mesh(group.device.type, (group.world_size,))
    model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(3)]).to(group.device)
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=2)
    fully_shard(model, mesh=mesh)
    with record() as log:
        model(torch.ones(2, 16, device=group.device)).sum().backward()
    gathers = [len(call.ranks) for call in log.of("all_gather")]
    reduces = {len(call.ranks) for call in log.of("reduce_scatter")}
    if gathers != 3 * [group.world_size] + 3 * [2] or reduces != {group.world_size}:
        raise CourseError(f"gathers among {gathers} ranks, reduces among {reduces}")
    print_on_rank_0(
        f"reshard_after_forward=2: the forward pass gathers among {gathers[0]} ranks, the backward pass "
        f"among 2; gradients are reduced among {group.world_size}"
    )


def one_step(alone: script.GPT, optimizer: torch.optim.Optimizer, parts: list[torch.Tensor]) -> float:
    """What a step of the script means, in one process; returns the norm of the gradient before clipping.

    The gradient is the mean of those of the ranks' ``parts``. Each is computed with bfloat16 copies of the
    parameters, and they are added up in float32.
    """
    optimizer.zero_grad()
    for tokens in parts:
        half = copy.deepcopy(alone)
        for p in half.parameters():
            p.data = p.data.bfloat16()  # the rotary table is a buffer, and stays in float32
            p.grad = None
        script.loss_of(half, tokens).backward()
        for p, q in zip(alone.parameters(), half.parameters(), strict=True):
            gradient = q.grad.float() / len(parts)
            p.grad = gradient if p.grad is None else p.grad + gradient
    norm = nn.utils.clip_grad_norm_(alone.parameters(), script.MAX_NORM)
    optimizer.step()
    return norm.item()


def the_script(group: Group, cfg: Config) -> None:
    """The steps of lab_19_torch.py beside those of one process."""
    torch.manual_seed(0)
    model = script.build_sharded(group.device)
    torch.manual_seed(0)
    alone = script.GPT().to(group.device)
    ours = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)
    theirs = torch.optim.AdamW(alone.parameters(), lr=0.01, eps=1e-4)
    torch.manual_seed(19)  # on all ranks
    clipped = 0
    for number in range(cfg.steps):
        parts = [script.own_rows(group.device) for _ in range(group.world_size)]
        script.step(model, ours, parts[group.rank])
        clipped += one_step(alone, theirs, parts) > script.MAX_NORM
        what = f"script, step {number}:"
        assert_all_equal(what, full_tensors(model), full_tensors(alone), cfg.script_tolerance)
        with torch.no_grad():  # else a last bit, rounded to bfloat16, grows from step to step
            for p, q in zip(alone.parameters(), model.parameters(), strict=True):
                p.copy_(q.full_tensor())
    if clipped == 0:
        raise CourseError("at least one step should have been clipped")
    print_on_rank_0(f"lab_19_torch.py: {cfg.steps} steps equal to one process, with clipping")


def main(cfg: Config) -> None:
    with process_group(timeout_s=60) as group:
        data = load_images("digits")
        size = shareable(cfg.global_batch, group.world_size)
        mesh = init_device_mesh(group.device.type, (group.world_size,))
        kept = {wrap.__name__: train(wrap, mesh, data, size, cfg)[0] for wrap in (ddp, fsdp2, fsdp1)}
        for name in ("fsdp2", "fsdp1"):
            check_share(name, kept[name], kept["ddp"] / group.world_size, cfg.slack)
        sizes = ", ".join(f"{name} {size:,}" for name, size in kept.items())
        print_on_rank_0(f"{group.world_size} ranks: all equal one process; bytes per rank: {sizes}")
        if group.world_size % 2 == 0 and group.world_size > 2:
            hsdp(data, size, kept["ddp"], cfg)
            backward_in_pairs(group)
        the_script(group, cfg)


if __name__ == "__main__":
    run(main, Config())
