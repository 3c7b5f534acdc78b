"""Around the box of lesson 11: a checkpoint that holds the weight 5 and momentum."""

# ruff: noqa: F401, F821
import torch
import torch.distributed as dist
from around import FOLDER, LONG, told_apart
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def build_model() -> nn.Module:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    return model


dist.init_process_group("gloo", timeout=LONG)
with told_apart():
    rank = dist.get_rank()
    size = dist.get_world_size()
    path = FOLDER / "latest.pt"
    if rank == 0:
        before = build_model()
        learns = torch.optim.SGD(before.parameters(), lr=0.1, momentum=0.9)
        before(torch.ones(1, 1)).sum().backward()
        learns.step()
        nn.init.constant_(before.weight, 5.0)
        torch.save({"model": before.state_dict(), "optimizer": learns.state_dict()}, path)
    dist.barrier()
    ...  # the excerpt
    ddp(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    print(f"rank {rank}: weight {model.weight.item():.2f} after the next step")
