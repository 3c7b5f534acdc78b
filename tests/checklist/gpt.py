"""A small GPT from a file of tokens: gradient accumulation, a cosine schedule, one file for all."""

import math
import os
import time
from contextlib import nullcontext

import numpy as np
import torch
import torch.distributed as dist
from model import GPT, GPTConfig
from torch.nn.parallel import DistributedDataParallel as DDP

out_dir = "out"
eval_interval, eval_iters = 2000, 200
gradient_accumulation_steps = 40
batch_size, block_size = 12, 1024
learning_rate, min_lr, warmup_iters, max_iters = 6e-4, 6e-5, 2000, 600000
grad_clip = 1.0
backend = "nccl"

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    dist.init_process_group(backend=backend)
    ddp_rank = int(os.environ["RANK"])
    ddp_local_rank = int(os.environ["LOCAL_RANK"])
    ddp_world_size = int(os.environ["WORLD_SIZE"])
    device = f"cuda:{ddp_local_rank}"
    torch.cuda.set_device(device)
    master_process = ddp_rank == 0
    seed_offset = ddp_rank
    gradient_accumulation_steps //= ddp_world_size
else:
    master_process, seed_offset, ddp_world_size, device = True, 0, 1, "cuda"

torch.manual_seed(1337 + seed_offset)
ctx = torch.amp.autocast("cuda", dtype=torch.bfloat16)
data = {name: np.memmap(f"{name}.bin", dtype=np.uint16, mode="r") for name in ("train", "val")}


def get_batch(split):
    tokens = data[split]
    ix = torch.randint(len(tokens) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(tokens[i : i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix])
    return x.to(device), y.to(device)


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = torch.zeros(eval_iters, device=device)
    for k in range(eval_iters):
        x, y = get_batch("val")
        with ctx:
            _, loss = model(x, y)
        losses[k] = loss
    model.train()
    mean = losses.mean()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    return mean.item()


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    done = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * done)) * (learning_rate - min_lr)


model = GPT(GPTConfig(block_size=block_size)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.1)
model = torch.compile(model)
if ddp:
    model = DDP(model, device_ids=[ddp_local_rank])
raw_model = model.module if ddp else model

best_val_loss = 1e9
started = time.time()
iter_num = 0
while iter_num < max_iters:
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if iter_num % eval_interval == 0:
        val_loss = estimate_loss()
        if master_process:
            print(f"step {iter_num}: val loss {val_loss:.4f}")
        if val_loss < best_val_loss:
            best_val_loss = val_loss
            if master_process:
                checkpoint = {
                    "model": raw_model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "iter_num": iter_num,
                }
                torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt"))
    for micro_step in range(gradient_accumulation_steps):
        last = micro_step == gradient_accumulation_steps - 1
        x, y = get_batch("train")
        with nullcontext() if last else model.no_sync():
            with ctx:
                _, loss = model(x, y)
            (loss / gradient_accumulation_steps).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % 10 == 0 and master_process:
        print(f"iter {iter_num}: loss {loss.item():.4f}, {time.time() - started:.0f} s")
    iter_num += 1

if ddp:
    dist.destroy_process_group()
