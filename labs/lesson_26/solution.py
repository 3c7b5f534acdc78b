"""Exercise 26: four functions, each of which hangs or is wrong on several ranks."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def on_all_ranks(flag: bool, device: torch.device) -> bool:
    """Whether ``flag`` is true on all ranks. Given, and right; ``train`` can use it. A collective."""
    everywhere = torch.tensor(float(flag), device=device)
    dist.all_reduce(everywhere, op=dist.ReduceOp.MIN)
    return bool(everywhere)


def mean_loss(loss: float) -> float:
    """The mean of all ranks' losses, on every rank. It is called once in each step."""
    # solution: begin
    total = torch.tensor(loss, dtype=torch.float64)
    dist.all_reduce(total, op=dist.ReduceOp.AVG)
    return total.item()
    # solution: found
    # raise NotImplementedError  # your turn: remove this line, and mend the four functions
    # known = mean_loss.__dict__
    # if str(loss) not in known:
    #     total = torch.tensor(loss, dtype=torch.float64)
    #     dist.all_reduce(total, op=dist.ReduceOp.AVG)
    #     known[str(loss)] = total.item()
    # return known[str(loss)]
    # solution: end


def mean_metrics(sums: dict[str, float], samples: int) -> dict[str, float]:
    """The mean of each metric over the samples of all ranks, on every rank.

    ``sums`` are this rank's sums over its ``samples``. All ranks have the same names, in any order.
    """
    # solution: begin
    names = sorted(sums)
    total = torch.tensor([*(sums[name] for name in names), samples], dtype=torch.float64)
    dist.all_reduce(total)
    return dict(zip(names, (total[:-1] / total[-1]).tolist(), strict=True))
    # solution: found
    # means = {}
    # for name, total in sums.items():
    #     mean = torch.tensor(total / samples, dtype=torch.float64)
    #     dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    #     means[name] = mean.item()
    # return means
    # solution: end


@torch.no_grad()
def accuracy(ddp: DistributedDataParallel, x: torch.Tensor, y: torch.Tensor) -> float:
    """The share of all ranks' samples that the model recognises, on every rank.

    ``x`` and ``y`` are this rank's test samples; the ranks have different numbers of them. Leave the model in
    training mode, and its buffers as they are.
    """
    ddp.eval()
    # solution: begin
    hits = (ddp.module(x).argmax(1) == y).sum()
    counts = torch.stack([hits, torch.tensor(len(y), device=hits.device)])
    dist.all_reduce(counts)
    share = (counts[0] / counts[1]).item()
    # solution: found
    # share = 0.0
    # if dist.get_rank() == 0:
    #     hits = (ddp(x).argmax(1) == y).sum()
    #     share = (hits / len(y)).item()
    # solution: end
    ddp.train()
    return share


def train(ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, batches: list) -> int:
    """Train on this rank's ``batches``, (x, y) each, and return how many steps were made, as all ranks do.

    A step is made if each rank has a batch left and each rank's loss is finite. If a loss is not, all ranks
    leave their batch out. After a rank has run out, no step is made.
    """
    steps = 0
    device = next(ddp.parameters()).device
    # solution: begin
    remaining = iter(batches)
    while True:
        batch = next(remaining, None)
        if not on_all_ranks(batch is not None, device):
            return steps
        x, y = batch
        loss = F.mse_loss(ddp(x), y)
        if on_all_ranks(bool(loss.isfinite()), device):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
    # solution: found
    # for x, y in batches:
    #     loss = F.mse_loss(ddp(x), y)
    #     if not loss.isfinite():
    #         continue
    #     optimizer.zero_grad()
    #     loss.backward()
    #     optimizer.step()
    #     steps += 1
    # return steps
    # solution: end


def main() -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ddp = DistributedDataParallel(nn.Linear(2, 1))
    batches = [(torch.ones(4, 2), torch.ones(4, 1))] * (3 + rank)
    loss = mean_loss(float(rank))
    made = train(ddp, torch.optim.SGD(ddp.parameters(), 0.1), batches)
    print(f"rank {rank} of {ranks} knows the mean {loss} and made {made} steps")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
