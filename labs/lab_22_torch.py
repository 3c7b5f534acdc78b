"""FSDP x TP by torch's own calls: init_device_mesh, parallelize_module, fully_shard.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_22_torch.py
Written by:  notebooks/22_device_mesh.ipynb (edit it there)
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU

WIDTH = 16
ROWS = 4  # of the batch, for each place along dp


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(x)))


def parallelize(model: nn.Sequential, mesh: DeviceMesh) -> None:
    """First split each block over tp, then shard over dp what is left on a rank; in place."""
    for block in model:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, rows: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of this rank's ``rows``; the target is 0."""
    optimizer.zero_grad()
    loss = model(rows).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)  # of the whole gradient, over both dimensions
    optimizer.step()
    return loss.detach()


def main() -> None:
    device = setup()
    ranks = dist.get_world_size()
    tp = 2 if ranks % 2 == 0 else 1
    mesh = init_device_mesh(device.type, (ranks // tp, tp), mesh_dim_names=("dp", "tp"))
    mesh._flatten("dp_tp")  # clipping then sums over both in one call; without it DTensor warns
    dp = mesh["dp"]

    torch.manual_seed(0)  # the same model and the same batch on all ranks
    model = nn.Sequential(Block(), Block()).to(device)
    batch = torch.randn(ROWS * dp.size(), WIDTH).to(device)
    parallelize(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)  # of the parameters that parallelize has made
    rows = batch.chunk(dp.size())[dp.get_local_rank()]  # divided along dp, the same along tp
    for step in range(3):
        loss = train_step(model, optimizer, rows)
        dist.all_reduce(loss, group=dp.get_group())
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item() / dp.size():.4f}")
    if dist.get_rank() == 0:
        for name, p in model[0].named_parameters():
            print(f"{name:11} {list(p.shape)}, of which this rank holds {list(p.to_local().shape)}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
