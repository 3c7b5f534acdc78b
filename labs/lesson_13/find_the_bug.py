"""Around the box of lesson 13: five epochs, and a job that is killed in the fourth and started again."""

# ruff: noqa: F401
import torch
import torch.distributed as dist
from around import FOLDER, LONG, told_apart
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shared.training.checkpoint import save_atomically


class KilledError(Exception):
    """In place of a kill."""


dist.init_process_group("gloo", timeout=LONG)
with told_apart():
    rank = dist.get_rank()
    size = dist.get_world_size()
    path = FOLDER / "snapshot.pt"
    done: list[int] = []

    def attempt(is_killed: bool) -> None:
        ddp = DistributedDataParallel(nn.Linear(1, 1))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)

        def train(epoch: int) -> None:
            if is_killed and epoch == 3:
                raise KilledError
            optimizer.zero_grad()
            ddp(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            done.append(epoch)

        ...  # the excerpt

    try:
        attempt(is_killed=True)
    except KilledError:
        dist.barrier()
    attempt(is_killed=False)
    print(f"rank {rank}: epochs {done}")
