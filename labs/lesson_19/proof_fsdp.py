"""fully_shard equals one process after every step, HSDP and FSDP1 too; the script equals units by hand.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lesson_19/proof_fsdp.py
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
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
from shared.training.parity import assert_all_equal, assert_equal

from lab_19_torch import MAX_NORM, build, build_sharded
from lab_19_torch import step as step_of_script
from lab_19_unit import Unit
from lesson_19.sharding import shard_units


@dataclass(frozen=True)
class Config:
    seed: int = 19
    steps: int = 4
    global_batch: int = 100  # images, or some more
    tolerance: float = 1e-12  # float64
    script_tolerance: float = 1e-6  # shards of float32
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
    """Bytes of the storages behind ``tensors``, each once. Of a DTensor only this rank's part lies there."""
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


def the_script(group: Group, cfg: Config) -> None:
    """The steps of lab_19_torch.py beside those of units by hand, which also gather bfloat16."""
    torch.manual_seed(0)
    model = build_sharded(group.device)
    torch.manual_seed(0)
    by_hand = build().to(group.device)
    units = [Unit(module, compute_dtype=torch.bfloat16) for module in by_hand]
    script = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)
    ours = torch.optim.AdamW(by_hand.parameters(), lr=0.01, eps=1e-4)
    torch.manual_seed(group.rank)
    x = torch.randn(256, 32, device=group.device)
    y = x[:, :1] * x[:, 1:2]
    clipped = 0
    for number in range(cfg.steps):
        step_of_script(model, script, x, y)
        ours.zero_grad()
        F.mse_loss(by_hand(x).float(), y).backward()
        squares = sum(p.grad.square().sum() for p in by_hand.parameters())
        dist.all_reduce(squares)
        norm = squares.sqrt().item()
        clipped += norm > MAX_NORM
        for p in by_hand.parameters():
            p.grad *= min(1.0, MAX_NORM / (norm + 1e-6))
        ours.step()
        whole = [p for unit in units for p in unit.full()]
        for (name, p), q in zip(model.named_parameters(), whole, strict=True):
            assert_equal(f"script, step {number}: {name}", p.full_tensor(), q, cfg.script_tolerance)
    if clipped == 0:
        raise CourseError("at least one step was to be clipped")
    print_on_rank_0(f"lab_19_torch.py: {cfg.steps} steps equal to units by hand, with clipping")


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
        the_script(group, cfg)


if __name__ == "__main__":
    run(main, Config())
