"""torch's ZeRO-1: DDP averages the gradients, ZeroRedundancyOptimizer divides the optimizer's state.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_18_torch.py
Written by:  notebooks/18_sharded_optimizer.ipynb (edit it there)
"""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before the group, which it would keep alive: exit code -6, lesson 08
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU


def wrap(
    model: nn.Module, optimizer_class: type[torch.optim.Optimizer], find_unused: bool = False, **options
) -> tuple[DistributedDataParallel, ZeroRedundancyOptimizer]:
    """DDP around ``model``, and an optimizer of which each rank keeps a part. Collective.

    Each parameter, whole, belongs to one rank. Move and cast the model before.
    """
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True, find_unused_parameters=find_unused)
    weights = [p for p in model.parameters() if p.dim() > 1]
    biases = [p for p in model.parameters() if p.dim() == 1]
    optimizer = ZeroRedundancyOptimizer(
        [{"params": weights, "weight_decay": 0.01}, {"params": biases, "weight_decay": 0.0}],
        optimizer_class=optimizer_class,
        parameters_as_bucket_view=True,  # a broadcast for each rank, not for each parameter
        **options,
    )
    return ddp, optimizer


def main() -> None:
    device = setup()
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(rank)  # DDP makes the parameters equal; the data are each rank's own
    hidden = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.Tanh())]
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), *hidden, nn.Linear(64, 1)).to(device)
    ddp, optimizer = wrap(model, torch.optim.AdamW, lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
    x = torch.randn(256, 32, device=device)
    y = x[:, :1] * x[:, 1:2]
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        loss = (ddp(x) - y).square().mean()
        loss.backward()  # p.grad is now the mean, whole, on all ranks
        nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)  # so this is right here
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())

    own = sum(t.nbytes for state in optimizer.optim.state.values() for t in state.values() if t.dim())
    sizes = [None] * ranks
    dist.all_gather_object(sizes, own)
    optimizer.consolidate_state_dict(to=0)  # all ranks call it, before rank 0 saves
    assert sum(sizes) == 2 * sum(p.nbytes for p in model.parameters()), "two moments of each parameter"
    assert losses[-1] < 0.5 * losses[0], losses
    if rank == 0:
        for r, size in enumerate(sizes):
            print(f"[rank {r}] keeps {size:,} of {sum(sizes):,} bytes of AdamW's state")
        count = len(optimizer.state_dict()["state"])
        print(
            f"loss of rank 0: {losses[0]:.2f} -> {losses[-1]:.2f}; to save: the state of {count} parameters"
        )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
