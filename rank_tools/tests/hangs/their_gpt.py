# trains a small language model; run with torchrun
import os
import time

import torch
from torch.distributed import barrier, destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

eval_interval = 2
max_iters = 6
ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend="gloo")
    ddp_rank = int(os.environ["RANK"])
    master_process = ddp_rank == 0
else:
    master_process = True
torch.manual_seed(1337)
data = torch.randint(0, 65, (4096,))


def get_batch():
    ix = torch.randint(len(data) - 9, (4,))
    return torch.stack([data[i : i + 8] for i in ix]), torch.stack([data[i + 1 : i + 9] for i in ix])


model = torch.nn.Sequential(torch.nn.Embedding(65, 16), torch.nn.Linear(16, 65))
raw_model = model
if ddp:
    model = DDP(model)


def save_checkpoint(iter_num):
    torch.save({"model": raw_model.state_dict(), "iter_num": iter_num}, os.devnull)
    barrier()  # make sure the checkpoint is complete before anyone goes on


t0 = time.time()
for iter_num in range(max_iters):
    if iter_num % eval_interval == 0 and iter_num > 0 and master_process:
        save_checkpoint(iter_num)
    X, Y = get_batch()
    loss = F.cross_entropy(model(X).view(-1, 65), Y.view(-1))
    loss.backward()
    for p in raw_model.parameters():
        p.data -= 0.1 * p.grad
        p.grad = None
    if master_process:
        print(f"iter {iter_num}: loss {loss.item():.4f}")
if ddp:
    destroy_process_group()
