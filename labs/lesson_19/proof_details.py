"""Around FSDP: equal ranks, the norm, bytes by dtype.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lesson_19/proof_details.py
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from shared.comm.record import record
from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.run import run
from shared.training.data import batch, load_images
from shared.training.models import BlockNet
from shared.training.parity import assert_all_equal, assert_equal, gradients

from lab_19_unit import Unit
from lesson_19.sharding import shard_units


@dataclass(frozen=True)
class Config:
    seed: int = 19
    global_batch: int = 840  # divides by every world size up to 8
    max_norm: float = 0.1
    tolerance: float = 1e-12  # float64


def net(group: Group, seed: int, dtype: torch.dtype = torch.float64) -> BlockNet:
    torch.manual_seed(seed)
    return BlockNet().to(group.device, dtype)


def backward(model: nn.Module, group: Group, cfg: Config, alone: bool = False) -> float:
    """Gradients of the whole batch, or of this rank's part of it; returns the loss."""
    dtype = next(model.parameters()).dtype
    x, y = batch(load_images(), 0, cfg.global_batch, group.device, dtype)
    if not alone:
        x, y = x[group.rank :: group.world_size], y[group.rank :: group.world_size]
    loss = F.cross_entropy(model(x).to(dtype), y)
    loss.backward()
    return loss.item()


def starts(group: Group, mesh: DeviceMesh, cfg: Config) -> None:
    """Each rank cuts its shard from its own model. fully_shard does not send rank 0's to the others."""
    model = shard_units(net(group, cfg.seed + group.rank), mesh)
    full = model.first.weight.full_tensor()
    own = [net(group, cfg.seed + rank).first.weight.detach() for rank in range(group.world_size)]
    mixed = torch.cat([weight.chunk(group.world_size)[rank] for rank, weight in enumerate(own)])
    assert_equal("shard r from rank r's model", full, mixed, 0.0)
    print_on_rank_0("different starts: shard r of the sharded weight is from rank r's model, for each r")


def clipping(group: Group, mesh: DeviceMesh, cfg: Config) -> None:
    """The norm is that of all shards together. A rank's own shards know only a part of it."""
    alone = net(group, cfg.seed)
    new = shard_units(net(group, cfg.seed), mesh)
    by_hand = net(group, cfg.seed)
    shard = Unit(by_hand).shard  # a plain tensor
    for model in (alone, new, by_hand):
        backward(model, group, cfg, alone=model is alone)
    expected = clip_grad_norm_(alone.parameters(), cfg.max_norm)
    norm = clip_grad_norm_(new.parameters(), cfg.max_norm).full_tensor()  # it returns a DTensor
    assert_equal("norm by fully_shard", norm, expected, cfg.tolerance)
    clipped = [(name, p.grad.full_tensor()) for name, p in new.named_parameters()]
    assert_all_equal("clipped", clipped, gradients(alone), cfg.tolerance)

    local = clip_grad_norm_(shard, cfg.max_norm)
    left = shard.grad.square().sum()
    torch.distributed.all_reduce(left)
    left = left.sqrt()
    print_on_rank_0(f"norm of the gradient: {expected:.4f}, as in one process")
    print_in_rank_order(f"norm of this rank's shards: {local:.4f}")
    if not (cfg.max_norm < local < 0.999 * expected):
        raise CourseError("each rank's norm should be above the limit and below the whole")
    assert_equal("left over", left, torch.full_like(left, group.world_size**0.5 * cfg.max_norm), 1e-4)
    print_on_rank_0(f"clipped to {cfg.max_norm} by each rank for itself: the norm is {left:.4f}")


# {name: (what is gathered, what is reduced, bytes of a parameter by rule as multiples of (N - 1) / N)}
POLICIES = {
    "float32": (torch.float32, torch.float32, 4 + 4 + 4),
    "bfloat16, reduced in float32": (torch.bfloat16, torch.float32, 2 + 2 + 4),
    "bfloat16, reduce_dtype=None": (torch.bfloat16, None, 2 + 2 + 4),  # before torch 2.15: 2 + 2 + 2
    "bfloat16, reduced in bfloat16": (torch.bfloat16, torch.bfloat16, 2 + 2 + 2),
}


def precision(group: Group, mesh: DeviceMesh, cfg: Config) -> None:
    """Shards and their gradients stay in float32; what is gathered and reduced is up to the policy."""
    alone = net(group, cfg.seed, torch.float32)
    backward(alone, group, cfg, alone=True)
    truth = nn.utils.get_total_norm([p.grad for p in alone.parameters()])
    part = (group.world_size - 1) / group.world_size * sum(p.numel() for p in alone.parameters())
    off: dict[str, float] = {}
    for short in (False, True):
        ddp = DistributedDataParallel(net(group, cfg.seed, torch.float32))
        with record() as log, torch.autocast(group.device.type, torch.bfloat16, enabled=short):
            backward(ddp, group, cfg)
        assert abs(log.by_rule() / part - 8) < 0.1, log.by_rule() / part
    print_on_rank_0("DDP, float32, also with autocast: sends 8.0 bytes per parameter, times (N-1)/N")
    for name, (gathered, reduced, expected) in POLICIES.items():
        policy = MixedPrecisionPolicy(param_dtype=gathered, reduce_dtype=reduced)
        model = shard_units(net(group, cfg.seed, torch.float32), mesh, mp_policy=policy)
        with record() as log:
            backward(model, group, cfg)
        for p in model.parameters():
            assert p.dtype == p.grad.dtype == torch.float32
        sent = log.by_rule() / part
        if not expected - 1 < sent <= 1.02 * expected:  # the root is not gathered for backward
            raise CourseError(f"{name}: {sent:.2f} bytes per parameter, by rule {expected}")
        pairs = zip(model.parameters(), alone.parameters(), strict=True)
        error = nn.utils.get_total_norm([p.grad.full_tensor() - q.grad for p, q in pairs])
        off[name] = (error / truth).item()
        print_on_rank_0(f"FSDP, {name}: sends {sent:.1f}; the gradient is off by {off[name]:.1e}")
    assert off["float32"] < 1e-5 < 1e-4 < off["bfloat16, reduced in float32"] < 0.05, off


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        mesh = init_device_mesh(group.device.type, (group.world_size,))
        starts(group, mesh, cfg)
        clipping(group, mesh, cfg)
        precision(group, mesh, cfg)


if __name__ == "__main__":
    run(main, Config())
