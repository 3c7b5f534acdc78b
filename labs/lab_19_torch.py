"""FSDP as one writes it at work: meta, fully_shard, to_empty, bfloat16, clipping, a checkpoint of shards.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_19_torch.py FOLDER
Written by:  notebooks/19_fsdp.ipynb (edit it there)
"""

import gc
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU

MAX_NORM = 0.1  # of the gradient


def build() -> nn.Sequential:
    blocks = [nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(4)]
    return nn.Sequential(*blocks, nn.Linear(32, 1))


def build_sharded(device: torch.device) -> nn.Sequential:
    """Rank 0's first values, in shards. Only rank 0 ever holds the whole, in its host's memory."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with torch.device("meta"):
        model = build()  # shapes without memory
    for unit in model:
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)  # the root: what no unit holds, here nothing
    model.to_empty(device=device)  # memory for this rank's shards
    first = build().state_dict() if dist.get_rank() == 0 else {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, first, options=options)
    return model


def step(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    """Train on this rank's batch; returns its loss."""
    optimizer.zero_grad()
    loss = F.mse_loss(model(x).float(), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)  # of all shards on all ranks
    optimizer.step()
    return loss.detach()


def main(folder: str) -> None:
    device = setup()
    torch.manual_seed(0)
    model = build_sharded(device)
    assert all(p.dtype == torch.float32 for p in model.parameters())  # the policy casts none of them up
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)  # after fully_shard, of the shards
    torch.manual_seed(dist.get_rank())  # each rank has data of its own
    x = torch.randn(256, 32, device=device)
    y = x[:, :1] * x[:, 1:2]
    losses = [step(model, optimizer, x, y).item() for _ in range(50)]

    weights, moments = get_state_dict(model, optimizer)  # names and shards: nothing is gathered
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder)  # each rank writes its shards
    weight = model[0][0].weight
    assert losses[-1] < 0.7 * losses[0], losses
    if dist.get_rank() == 0:
        print(f"{tuple(weight.shape)} in {weight.placements}: rank 0 has {tuple(weight.to_local().shape)}")
        print(f"loss of rank 0: {losses[0]:.2f} -> {losses[-1]:.2f}; saved {len(weights)} tensors in shards")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
    gc.collect()  # dcp.save leaves cycles behind; without this the exit aborted in 5 of 50 runs
