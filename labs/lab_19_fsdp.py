"""FSDP of both generations equals one process after every step, on 1 to N ranks, and holds 1/N of its bytes.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_19_fsdp.py
Written by:  notebooks/19_fsdp.ipynb (edit it there)
"""

import warnings
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
from shared.runtime.group import process_group
from shared.runtime.report import print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.data import Images, batch, load_images, shareable
from shared.training.models import Block, BlockNet
from shared.training.parity import assert_all_equal


@dataclass(frozen=True)
class Config:
    seed: int = 19
    steps: int = 4
    global_batch: int = 100  # images, or some more
    tolerance: float = 1e-12  # float64
    slack: float = 0.03  # some ranks hold rows more or less than others, as a fraction of a share


def ddp(net: BlockNet, mesh: DeviceMesh) -> nn.Module:
    return DistributedDataParallel(net, process_group=mesh.get_group())


def fsdp2(net: BlockNet, mesh: DeviceMesh) -> nn.Module:
    """From the inside out: each block is a unit, the root is one with what is left, first and last layer."""
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def fsdp1(net: BlockNet, mesh: DeviceMesh) -> nn.Module:
    """The policy says which modules become units. On a CPU it wants to be told the device."""
    with warnings.catch_warnings(action="ignore" if mesh.size() == 1 else "default"):  # one rank: no shards
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


def held(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes that this rank keeps from one step to the next."""
    moments = ("exp_avg", "exp_avg_sq")
    return {
        "parameters": stored(model.parameters()),
        "gradients": stored(p.grad for p in model.parameters() if p.grad is not None),
        "Adam's moments": stored(state[key] for state in optimizer.state.values() for key in moments),
    }


def train(
    wrap: Callable, mesh: DeviceMesh, data: Images, size: int, cfg: Config
) -> tuple[dict[str, int], CommRecord]:
    """Train beside one process that has the whole batch, and compare.

    Returns what this rank holds, and what it called in the last forward and backward.
    """
    device = torch.device(mesh.device_type)
    n = mesh.size()
    everyone = mesh.get_group() if mesh.ndim == 1 else None
    torch.manual_seed(cfg.seed)
    alone = BlockNet().double().to(device)
    torch.manual_seed(cfg.seed + dist.get_rank())
    net = BlockNet().double().to(device)  # another one on each rank
    broadcast_from_rank_0(net.parameters(), everyone)  # of the three, only DDP would do that itself
    model = wrap(net, mesh)
    # Adam divides by the gradient's size plus eps: 1e-8 would enlarge rounding errors of tiny gradients.
    ours = torch.optim.Adam(model.parameters(), 1e-3, eps=1e-4)
    theirs = torch.optim.Adam(alone.parameters(), 1e-3, eps=1e-4)
    mine = slice(dist.get_rank(), None, n)
    for step in range(cfg.steps):
        x, y = batch(data, step, size, device)
        ours.zero_grad()
        with record() as log:
            F.cross_entropy(model(x[mine]), y[mine]).backward()
        ours.step()
        theirs.zero_grad()
        F.cross_entropy(alone(x), y).backward()
        theirs.step()
        what = f"{wrap.__name__}, {n} ranks, step {step}:"
        assert_all_equal(what, full_tensors(model), full_tensors(alone), cfg.tolerance)
    return held(model, ours), log


def hsdp(data: Images, size: int, everything: int, cfg: Config) -> None:
    """Two replicas, each sharded over half of the ranks: shards are all-reduced between the replicas."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    names = ("replicate", "shard")
    mesh = init_device_mesh(device, (2, dist.get_world_size() // 2), mesh_dim_names=names)
    row, log = train(fsdp2, mesh, data, size, cfg)
    share = sum(row.values()) * mesh.size(1) / everything
    units = log.count("reduce_scatter")
    between = {len(call.ranks) for call in log.of("all_reduce")}
    within = {len(call.ranks) for call in log.of("reduce_scatter", "all_gather")}
    if abs(share - 1) > 2 * cfg.slack or log.count("all_reduce") != units:
        raise CourseError(f"HSDP: {share:.3f} times the share, calls {dict(log.counts())}")
    if (between, within) != ({2}, {mesh.size(1)}):
        raise CourseError(f"HSDP: all-reduces among {between} ranks, the others among {within}")
    print_on_rank_0(
        f"HSDP, 2 replicas x {mesh.size(1)} shards: equal one process; bytes per rank: "
        f"{sum(row.values()):,}; {units} reduce-scatters within a replica, {units} all-reduces between them"
    )


def main(cfg: Config) -> None:
    with process_group(timeout_s=60) as group:
        rows: dict[int, dict] = {}
        data = load_images("digits")
        size = shareable(cfg.global_batch, group.world_size)
        for n in range(1, group.world_size + 1):
            mesh = DeviceMesh(group.device.type, range(n))  # all ranks call this, also those outside
            if group.rank < n:
                rows[n] = {}
                for wrap in (ddp, fsdp2, fsdp1):
                    rows[n][wrap.__name__], _ = train(wrap, mesh, data, size, cfg)
                everything = sum(rows[n]["ddp"].values())
                for way in ("fsdp2", "fsdp1"):
                    share = sum(rows[n][way].values()) * n / everything
                    if not 1 - 2 * cfg.slack <= share <= 1 + cfg.slack:  # the last rank may lack several rows
                        raise CourseError(f"{way} on {n} ranks: {share:.3f} times 1/N of DDP's bytes")
                sizes = ", ".join(f"{way} {sum(row.values()):,}" for way, row in rows[n].items())
                print_on_rank_0(f"{n} ranks: all equal one process; bytes per rank: {sizes}")
            dist.barrier()
        if group.world_size % 2 == 0 and group.world_size > 2:
            hsdp(data, size, everything, cfg)
        record_results("lab_19_fsdp", {"rows": rows})


if __name__ == "__main__":
    run(main, Config())
