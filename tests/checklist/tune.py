"""A model that is partly frozen, an averaged early stop, errors of memory that all ranks hear of."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from tqdm import tqdm

from cells import Cells, UNet


def agreed(flag, device):
    """Whether it is true on any rank."""
    flag = torch.tensor(int(flag), device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def step(model, batch, optimizer, device):
    pictures, masks = batch["picture"].to(device), batch["mask"].to(device)
    optimizer.zero_grad()
    loss = nn.functional.binary_cross_entropy_with_logits(model(pictures), masks)
    if agreed(not torch.isfinite(loss), device):
        return None
    loss.backward()
    optimizer.step()
    return loss.item()


def dice(model, loader, device):
    model.eval()
    both = torch.zeros(1, device=device)
    either = torch.zeros(1, device=device)
    with torch.inference_mode():
        for batch in loader:
            found = model(batch["picture"].to(device)) > 0
            masks = batch["mask"].to(device) > 0
            both += (found & masks).sum()
            either += found.sum() + masks.sum()
    dist.all_reduce(both)
    dist.all_reduce(either)
    return (2 * both / either).item()


def main():
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    net = UNet()
    net.load_state_dict(torch.load("pretrained.pt", map_location=device), strict=False)
    net.head = nn.Conv2d(64, 1, 1)
    for parameter in net.encoder.parameters():
        parameter.requires_grad = False
    net = net.to(device)
    model = DDP(net, device_ids=[local_rank])
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    train_set, val_set = Cells("train"), Cells("val")
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, 4, sampler=sampler, num_workers=2, drop_last=True)
    val_loader = DataLoader(val_set, 4, sampler=DistributedSampler(val_set, shuffle=False))
    for epoch in range(40):
        sampler.set_epoch(epoch)
        model.train()
        for batch in tqdm(loader, disable=rank != 0):
            step(model, batch, optimizer, device)
        score = dice(net, val_loader, device)
        if rank == 0:
            print(f"epoch {epoch}: {score:.3f}")
            torch.save(net.state_dict(), f"unet_{epoch}.pt")
        if score > 0.95:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
