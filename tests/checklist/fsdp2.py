"""A language model by fully_shard: a mesh, a checkpoint of all shards, one whole file at the end."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from transformer import Transformer

ACCUMULATE = 4


class Tokens(Dataset):
    def __init__(self, path, length):
        self.tokens = torch.load(path)
        self.length = length

    def __len__(self):
        return len(self.tokens) // self.length

    def __getitem__(self, i):
        piece = self.tokens[i * self.length : (i + 1) * self.length + 1]
        return piece[:-1], piece[1:]


def build(mesh):
    torch.manual_seed(0)
    model = Transformer(layers=12, width=768)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


@torch.no_grad()
def validate(model, loader, device):
    model.eval()
    total = torch.zeros(2, device=device)
    for x, y in loader:
        loss = model.loss(x.to(device), y.to(device))
        total += torch.stack([loss.detach() * len(x), torch.tensor(float(len(x)), device=device)])
    dist.all_reduce(total)
    model.train()
    return (total[0] / total[1]).item()


def export(model, path, rank):
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        torch.save(state, path)


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cuda", (world_size,))
    model = build(mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    train_set, val_set = Tokens("train.pt", 1024), Tokens("val.pt", 1024)
    sampler = DistributedSampler(train_set, world_size, rank)
    loader = DataLoader(train_set, 8, sampler=sampler, drop_last=True)
    val_loader = DataLoader(val_set, 8, sampler=DistributedSampler(val_set, world_size, rank, shuffle=False))
    if os.path.exists("shards"):
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        dcp.load(state, checkpoint_id="shards")
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            last = (step + 1) % ACCUMULATE == 0
            model.set_requires_gradient_sync(last)
            loss = model(x.to(device), y.to(device))
            (loss / ACCUMULATE).backward()
            if last:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        val_loss = validate(model, val_loader, device)
        if rank == 0:
            print(f"epoch {epoch}: {val_loss:.3f}")
        model_state, optimizer_state = get_state_dict(model, optimizer)
        dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id="shards")
    export(model, "model.pt", rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
