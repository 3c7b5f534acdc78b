"""Tensor parallelism inside a machine, data parallelism between machines."""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from transformer import Transformer, WikiText

TP = 8


def split(model, mesh):
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], {"mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(local_rank)
    mesh = init_device_mesh("cuda", (world_size // TP, TP), mesh_dim_names=("dp", "tp"))
    dp_rank, dp_size = mesh["dp"].get_local_rank(), mesh["dp"].size()
    torch.manual_seed(0)
    model = split(Transformer().cuda(), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    data = WikiText("train")
    sampler = DistributedSampler(data, num_replicas=dp_size, rank=dp_rank)
    loader = DataLoader(data, batch_size=4, sampler=sampler, drop_last=True)
    group = mesh["dp"].get_group()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss = model(x.cuda(), y.cuda())
            loss.backward()
            optimizer.step()
            if step % 100 == 0:
                mean = loss.detach().clone()
                dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=group)
                if dist.get_rank() == 0:
                    print(f"step {step}: {mean.item():.3f}")
    whole = {name: one.full_tensor() for name, one in model.state_dict().items()}
    if dist.get_rank() == 0:
        torch.save(whole, "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
