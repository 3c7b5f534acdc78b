"""Around FSDP: who makes ranks equal, when to build the optimizer, the norm of gradients, mixed precision.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_19_details.py
Written by:  notebooks/19_fsdp.ipynb
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.nn.utils import clip_grad_norm_

from shared.runtime.errors import CourseError
from shared.runtime.group import Group, process_group
from shared.runtime.report import print_in_rank_order, print_on_rank_0
from shared.runtime.results import record_results
from shared.runtime.run import run
from shared.training.data import batch, load_images
from shared.training.models import BlockNet
from shared.training.parity import assert_all_equal, assert_equal, gradients


@dataclass(frozen=True)
class Config:
    seed: int = 19
    steps: int = 8
    global_batch: int = 840  # divides by every world size up to 8
    max_norm: float = 0.1
    tolerance: float = 1e-12  # float64


def net(group: Group, seed: int, dtype: torch.dtype = torch.float64) -> BlockNet:
    torch.manual_seed(seed)
    return BlockNet().to(group.device, dtype)


def shard(model: BlockNet, mesh: DeviceMesh, **options) -> BlockNet:
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


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
    model = shard(net(group, cfg.seed + group.rank), mesh)
    found = model.first.weight.full_tensor()
    own = [net(group, cfg.seed + rank).first.weight.detach() for rank in range(group.world_size)]
    mixed = torch.cat([weight.chunk(group.world_size)[rank] for rank, weight in enumerate(own)])
    assert_equal("shard r from rank r's model", found, mixed, 0.0)
    print_on_rank_0("different starts: shard r of the sharded weight is from rank r's model, for each r")


def sync_module_states(group: Group, cfg: Config) -> None:
    """FSDP1 has an option that sends rank 0's model to the others, but not for a model on a CPU."""
    if group.device.type != "cpu":
        return
    model = net(group, cfg.seed + group.rank)
    try:
        FullyShardedDataParallel(model, device_id=group.device, sync_module_states=True)
    except ValueError as error:
        if "requires them to be on GPU" not in str(error):
            raise
        print_on_rank_0("FSDP1, sync_module_states=True: requires parameters and buffers to be on GPU")
    else:
        raise CourseError("sync_module_states=True was to be refused on a CPU")


def early_optimizer(group: Group, mesh: DeviceMesh, cfg: Config) -> dict[str, list[float]]:
    """The same training with the optimizer built before and after fully_shard, which makes new parameters."""
    losses: dict[str, list[float]] = {}
    for moment in ("before", "after"):
        model = net(group, cfg.seed)
        given = list(model.parameters())
        shard(model, mesh)
        optimizer = torch.optim.SGD(given if moment == "before" else model.parameters(), 0.2)
        losses[moment] = []
        for _ in range(cfg.steps):
            model.zero_grad()
            losses[moment].append(backward(model, group, cfg))
            optimizer.step()
        print_on_rank_0(
            f"optimizer built {moment:6} fully_shard: losses {[round(x, 3) for x in losses[moment]]}"
        )
    assert len(set(losses["before"])) == 1, losses
    assert losses["after"][-1] < 0.9 * losses["after"][0], losses
    return losses


def clipping(group: Group, mesh: DeviceMesh, cfg: Config) -> None:
    """The norm is that of all shards together. A rank's own shards know only a part of it."""
    alone = net(group, cfg.seed)
    new = shard(net(group, cfg.seed), mesh)
    single = net(group, cfg.seed, torch.float32)  # FSDP1 takes norms in float32
    old = FullyShardedDataParallel(single, device_id=group.device, use_orig_params=True)
    for model in (alone, new, old):
        backward(model, group, cfg, alone=model is alone)
    expected = clip_grad_norm_(alone.parameters(), cfg.max_norm)
    found = clip_grad_norm_(new.parameters(), cfg.max_norm).full_tensor()  # it returns a DTensor
    assert_equal("norm by fully_shard", found, expected, cfg.tolerance)
    clipped = [(name, p.grad.full_tensor()) for name, p in new.named_parameters()]
    assert_all_equal("clipped", clipped, gradients(alone), cfg.tolerance)

    assert_equal("norm by FSDP1's method", old.clip_grad_norm_(float("inf")), expected.float(), 1e-5)
    local = clip_grad_norm_(old.parameters(), cfg.max_norm)  # FSDP1's shards are plain tensors
    left = old.clip_grad_norm_(float("inf"))
    print_on_rank_0(f"norm of the gradient: {expected:.4f}, as in one process")
    print_in_rank_order(f"norm of this rank's shards: {local:.4f}")
    if not (cfg.max_norm < local < 0.95 * expected):
        raise CourseError("each rank's norm was to be above the limit and below the whole")
    assert_equal("left over", left, torch.full_like(left, group.world_size**0.5 * cfg.max_norm), 1e-4)
    print_on_rank_0(f"clipped to {cfg.max_norm} by each rank for itself: the norm is {left:.4f}")


def precision(group: Group, mesh: DeviceMesh, cfg: Config) -> dict[str, float]:
    """Shards, gradients and their sum stay in float32; what is gathered and computed with is bfloat16."""
    alone = net(group, cfg.seed, torch.float32)
    backward(alone, group, cfg, alone=True)
    whole: dict[torch.dtype, int] = {}
    off: dict[str, float] = {}
    for dtype in (torch.float32, torch.bfloat16):
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        model = shard(net(group, cfg.seed, torch.float32), mesh, mp_policy=policy)

        def look(layer: nn.Module, inputs: tuple, output: torch.Tensor, dtype: torch.dtype = dtype) -> None:
            whole[dtype] = layer.weight.nbytes

        model.blocks[0].up.register_forward_hook(look)
        backward(model, group, cfg)
        for p in model.parameters():
            assert p.dtype == p.grad.dtype == torch.float32
        pairs = zip(model.parameters(), alone.parameters(), strict=True)
        error = nn.utils.get_total_norm([p.grad.full_tensor() - q.grad for p, q in pairs])
        off[str(dtype)] = (error / nn.utils.get_total_norm([p.grad for p in alone.parameters()])).item()
        print_on_rank_0(f"computed in {dtype}: a layer's whole weight has {whole[dtype]:,} bytes")
    assert whole[torch.float32] == 2 * whole[torch.bfloat16], whole
    assert off["torch.float32"] < 1e-5 < 1e-4 < off["torch.bfloat16"] < 0.05, off
    return off


def main(cfg: Config) -> None:
    with process_group(timeout_s=60, smallest=2) as group:
        mesh = init_device_mesh(group.device.type, (group.world_size,))
        starts(group, mesh, cfg)
        sync_module_states(group, cfg)
        losses = early_optimizer(group, mesh, cfg)
        clipping(group, mesh, cfg)
        record_results("lab_19_details", {"losses": losses, "off": precision(group, mesh, cfg)})


if __name__ == "__main__":
    run(main, Config())
