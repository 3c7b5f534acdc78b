# rejected: train hangs:
"""Each rank skips its own bad batches."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def pass_on(x: torch.Tensor) -> torch.Tensor:
    """Send ``x`` to the next rank, the last one to rank 0, and return what the rank before has sent."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(x)
    calls = [
        dist.P2POp(dist.isend, x, (rank + 1) % ranks),
        dist.P2POp(dist.irecv, received, (rank - 1) % ranks),
    ]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return received


def mean_metrics(sums: dict[str, float], samples: int) -> dict[str, float]:
    """The mean of each metric over the samples of all ranks, on every rank.

    ``sums`` are this rank's sums over its ``samples``. All ranks have the same names, in any order.
    """
    names = sorted(sums)
    total = torch.tensor([*(sums[name] for name in names), samples], dtype=torch.float64)
    dist.all_reduce(total)
    return dict(zip(names, (total[:-1] / total[-1]).tolist(), strict=True))


@torch.no_grad()
def accuracy(ddp: DistributedDataParallel, x: torch.Tensor, y: torch.Tensor) -> float:
    """The share of all ranks' samples that the model recognises, on every rank.

    ``x`` and ``y`` are this rank's test samples; the ranks have different numbers of them. Leave the model in
    training mode, and its buffers as they are.
    """
    ddp.eval()
    hits = (ddp.module(x).argmax(1) == y).sum()
    counts = torch.stack([hits, torch.tensor(len(y), device=hits.device)])
    dist.all_reduce(counts)
    share = (counts[0] / counts[1]).item()
    ddp.train()
    return share


def train(ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, batches: list) -> int:
    """Train on this rank's ``batches``, (x, y) each, and return how many steps were made, as all ranks do.

    A step is made if each rank has a batch left and each rank's loss is finite. If a loss is not, all ranks
    leave their batch out. After a rank has run out, no step is made.
    """
    steps = 0
    remaining = iter(batches)
    while True:
        batch = next(remaining, None)
        has_data = torch.tensor(float(batch is not None), device=next(ddp.parameters()).device)
        dist.all_reduce(has_data, op=dist.ReduceOp.MIN)
        if not has_data:
            return steps
        x, y = batch
        loss = F.mse_loss(ddp(x), y)
        finite = loss.detach().isfinite().float()
        if finite:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
