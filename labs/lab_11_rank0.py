"""One rank saves, the others wait, all load.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_11_rank0.py
Written by:  notebooks/11_checkpoints.ipynb (edit it there)
"""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU


def read(model: nn.Module, path: Path, device: torch.device) -> None:
    """Fill ``model`` from the file, on this rank's own device. Not a collective."""
    model.load_state_dict(torch.load(path, map_location=device, weights_only=True))


def save_and_load(ddp: DistributedDataParallel, model: nn.Module, path: Path, device: torch.device) -> None:
    """Rank 0 of all machines saves, every rank fills a plain model from its file. Collective."""
    if dist.get_rank() == 0:
        torch.save(ddp.module.state_dict(), path)  # of the model, not of its wrapper
    dist.barrier()  # nobody reads before rank 0 has written
    read(model, path, device)
    dist.barrier()  # nobody replaces or removes the file before all have read


def main() -> None:
    device = setup()
    rank = dist.get_rank()
    torch.manual_seed(rank)

    ddp = DistributedDataParallel(nn.Linear(8, 1).to(device))  # all start from rank 0's parameters
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = (ddp(torch.rand(16, 8, device=device)) - 1).square().mean()
        loss.backward()
        optimizer.step()

    model = nn.Linear(8, 1).to(device)  # other parameters on each rank
    # of this run alone; on several machines, a folder that they share
    path = Path(tempfile.gettempdir()) / f"lab_11_rank0_{os.environ['MASTER_PORT']}.pt"
    save_and_load(ddp, model, path, device)
    for loaded, trained in zip(model.parameters(), ddp.parameters(), strict=True):
        assert torch.equal(loaded, trained), f"rank {rank} has loaded other parameters than it trained"
    dist.barrier()  # all have compared
    if rank == 0:
        path.unlink()
        print(f"rank 0 has saved, {dist.get_world_size()} ranks have loaded the same parameters")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
