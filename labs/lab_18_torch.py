"""torch's ZeRO-1, ZeroRedundancyOptimizer under DDP, and beside it the nearest to ZeRO-2: FSDP2.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_18_torch.py
Written by:  notebooks/18_sharded_optimizer.ipynb (edit it there)
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before the group, which it would keep alive: exit code -6, lesson 08
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU


def groups_of(model: nn.Module) -> list[dict]:
    """Weights decay, biases do not."""
    weights = [p for p in model.parameters() if p.dim() > 1]
    biases = [p for p in model.parameters() if p.dim() == 1]
    return [{"params": weights, "weight_decay": 0.01}, {"params": biases, "weight_decay": 0.0}]


def wrap(
    model: nn.Module, optimizer_class: type[torch.optim.Optimizer], find_unused: bool = False, **options
) -> tuple[DistributedDataParallel, ZeroRedundancyOptimizer]:
    """DDP around ``model``, and an optimizer of which each rank keeps a part. Collective.

    Each parameter, whole, belongs to one rank. Move and cast the model before.
    """
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True, find_unused_parameters=find_unused)
    optimizer = ZeroRedundancyOptimizer(
        groups_of(model),
        optimizer_class=optimizer_class,
        parameters_as_bucket_view=True,  # a broadcast for each rank, not for each parameter
        **options,
    )
    return ddp, optimizer


def shard(model: nn.Module, **options) -> tuple[nn.Module, torch.optim.Optimizer]:
    """FSDP2 with gradients and state divided: parameters stay whole from forward to backward. Collective.

    It sends no values at the start: all ranks must begin with the same.
    """
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, reshard_after_forward=False)
    fully_shard(model, reshard_after_forward=False)
    return model, torch.optim.AdamW(groups_of(model), **options)


def build(device: torch.device) -> nn.Sequential:
    torch.manual_seed(0)
    hidden = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.Tanh())]
    return nn.Sequential(nn.Linear(32, 64), nn.Tanh(), *hidden, nn.Linear(64, 1)).to(device)


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> list[float]:
    """Losses of this rank."""
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()  # p.grad is now the mean over the ranks: whole under DDP, a part under FSDP2
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # so this is right here, in both
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def bytes_here(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes on this rank: of a DTensor its part."""
    return sum(t.to_local().nbytes if isinstance(t, DTensor) else t.nbytes for t in tensors)


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(1 + rank)  # the data are each rank's own
    x = torch.randn(256, 32, device=device)
    y = x[:, :1] * x[:, 1:2]
    whole = sum(p.nbytes for p in build(device).parameters())
    losses = {}
    ways = {
        "DDP + ZeRO-1": wrap(build(device), torch.optim.AdamW, lr=0.01),
        "FSDP2": shard(build(device), lr=0.01),
    }
    for name, (model, optimizer) in ways.items():
        losses[name] = train(model, optimizer, x, y)
        inner = getattr(optimizer, "optim", optimizer)  # torch's class keeps the optimizer of its part there
        state = bytes_here(t for own in inner.state.values() for t in own.values() if t.dim())
        gradients = bytes_here(p.grad for p in model.parameters())
        everyones = [None] * ranks
        dist.all_gather_object(everyones, (gradients, state))
        assert sum(state for _, state in everyones) == 2 * whole, f"{name}: two moments of each parameter"
        if rank == 0:
            print(f"{name}: parameters take {whole:,} bytes; gradients and state of AdamW, by rank:")
            print("    " + ", ".join(f"{gradients:,} + {state:,}" for gradients, state in everyones))
    (ddp, optimizer) = ways["DDP + ZeRO-1"]
    optimizer.consolidate_state_dict(to=0)  # all ranks call it, before rank 0 saves
    first, second = losses.values()
    assert max(abs(a - b) for a, b in zip(first, second, strict=True)) < 1e-4, "the two ways differ"
    assert first[-1] < 0.5 * first[0], first
    if rank == 0:
        count = len(optimizer.state_dict()["state"])
        print(f"loss of rank 0 in both: {first[0]:.2f} -> {first[-1]:.2f}")
        print(f"to save, gathered by consolidate_state_dict: the state of {count} parameters")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
