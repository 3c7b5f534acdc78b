"""Save a model that FSDP has sharded. Called again, on any number of ranks, it resumes.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_11_fsdp.py FOLDER
Written by:  notebooks/11_checkpoints.ipynb (edit it there)
"""

import copy
import gc
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU


def save(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder)  # each rank writes its rows


def load(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    weights, moments = get_state_dict(model, optimizer)  # what is to be filled
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=folder)  # each rank reads its rows
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: torch.Tensor) -> None:
    for x in batches:
        optimizer.zero_grad()
        (model(x).squeeze(1) - x.sum(1)).square().mean().backward()
        optimizer.step()


def main(folder: Path) -> None:
    device = setup()
    torch.manual_seed(0)  # on all ranks: one model, the same batches
    batches = torch.rand(6, 840, 8, device=device, dtype=torch.float64)
    alone = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)).to(device, torch.float64)
    model = fully_shard(copy.deepcopy(alone))
    optimizer = torch.optim.Adam(model.parameters())
    mine = batches[:, dist.get_rank() :: dist.get_world_size()]
    if not (folder / ".metadata").exists():  # written last, when all are in the save; on NFS, let rank 0 look
        train(model, optimizer, mine[:3])
        save(model, optimizer, folder)
        told = "step 3 is saved"
    else:
        load(model, optimizer, folder)
        train(model, optimizer, mine[3:])
        train(alone, torch.optim.Adam(alone.parameters()), batches)
        for sharded, whole in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(sharded.full_tensor(), whole, rtol=0, atol=1e-12)
        told = "after step 6 all parameters equal those of one process"
    if dist.get_rank() == 0:
        print(told)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    gc.collect()  # or a thread of gloo may abort the exit: pytorch#190489
