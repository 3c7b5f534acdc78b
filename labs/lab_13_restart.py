"""A rank is killed, torchrun starts all ranks again, and training goes on from the last checkpoint.

Run it:      torchrun --standalone --nproc-per-node=2 --max-restarts=1 labs/lab_13_restart.py
Written by:  notebooks/13_elastic.ipynb
"""

import gc
import os
import signal
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 20
SAVE_EVERY = 5
KILL_BEFORE_STEP = 13  # in the first attempt only; steps count from 0


def store_of_this_attempt() -> dist.Store:
    """torchrun's store outlives a restart, addresses of dead ranks included: use keys of our own."""
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    return dist.PrefixStore("attempt " + os.environ["TORCHELASTIC_RESTART_COUNT"], store)


def new_run() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(8, 1, dtype=torch.float64)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int, size: int) -> None:
    """Train on this rank's part of a batch (48, 8). The whole batch follows from the step alone."""
    x = torch.randn(48, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
    mine = x[rank::size]
    squares = (model(mine) - mine.sum(1, keepdim=True)).square()
    (squares.sum() / len(x) * size).backward()  # DDP divides by the number of ranks
    optimizer.step()
    optimizer.zero_grad()


def main() -> None:
    rank = int(os.environ["RANK"])
    size = int(os.environ["WORLD_SIZE"])
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    dist.init_process_group("gloo", store=store_of_this_attempt(), rank=rank, world_size=size)
    model, optimizer = new_run()
    first = 0
    checkpoint = Path(tempfile.gettempdir()) / f"{os.environ['TORCHELASTIC_RUN_ID']}.pt"  # of this launch
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["steps done"]
    ddp = DistributedDataParallel(model)  # all ranks meet here, so nobody saves before all have loaded
    if rank == 0:
        print(f"attempt {attempt}: {size} ranks train from step {first}")
    for step in range(first, STEPS):
        if attempt == "0" and step == KILL_BEFORE_STEP and rank == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        train_step(ddp, optimizer, step, rank, size)
        if rank == 0 and (step + 1) % SAVE_EVERY == 0:
            new = checkpoint.with_suffix(".part")
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "steps done": step + 1}
            torch.save(state, new)
            new.replace(checkpoint)  # in one step, so that a kill leaves the old file or the new one
    unbroken, its_optimizer = new_run()
    for step in range(STEPS):
        train_step(unbroken, its_optimizer, step, rank=0, size=1)
    for mine, expected in zip(model.parameters(), unbroken.parameters(), strict=True):
        assert (mine - expected).abs().max() < 1e-12, "the end differs from that of an unbroken run"
    dist.barrier()
    if rank == 0:
        checkpoint.unlink()
        print(f"step {STEPS}: the weights equal those of one process that nobody killed")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # DDP and its hooks form a cycle; if the dying interpreter ends it, that may abort with -6
