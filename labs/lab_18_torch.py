"""torch's ZeRO-1: ZeroRedundancyOptimizer under DDP.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_18_torch.py
Written by:  notebooks/18_sharded_optimizer.ipynb (edit it there)
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
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
        loss.backward()  # under DDP p.grad is now the mean over the ranks
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # so this is right here
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(1 + rank)  # each rank has data of its own
    x = torch.randn(256, 32, device=device)
    y = x[:, :1] * x[:, 1:2]
    model, optimizer = wrap(build(device), torch.optim.AdamW, lr=0.01)
    losses = train(model, optimizer, x, y)
    moments = [t for state in optimizer.optim.state.values() for t in state.values() if t.dim()]
    kept = [None] * ranks
    dist.all_gather_object(kept, sum(t.nbytes for t in moments))
    whole = 2 * sum(p.nbytes for p in model.parameters())
    assert sum(kept) == whole, "two moments of each parameter"
    optimizer.consolidate_state_dict(to=0)  # all ranks call it, before rank 0 saves
    assert losses[-1] < 0.5 * losses[0], losses
    if rank == 0:
        print(f"the ranks keep {', '.join(f'{size:,}' for size in kept)} of {whole:,} bytes of AdamW's state")
        print(f"loss of rank 0: {losses[0]:.2f} -> {losses[-1]:.2f}")
        count = len(optimizer.state_dict()["state"])
        print(f"to save, gathered by consolidate_state_dict: the state of {count} parameters")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
