"""A rank is killed, torchrun starts all ranks again, and training resumes from the last checkpoint.

Several machines: TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 before torchrun on each, and a FILE that all can read.

Run it:      torchrun --standalone --nproc-per-node=2 --max-restarts=1 labs/lab_13_restart.py FILE
Written by:  notebooks/13_elastic.ipynb (edit it there)
"""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # works around an abort at exit over gloo; your script may not need it
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 20
SAVE_EVERY = 5
KILL_BEFORE_STEP = 13  # the first time only; steps count from 0


def store_of_this_attempt(rank: int) -> dist.Store:
    """Where the ranks leave their addresses: a place without addresses of dead ranks.

    torchrun's store outlives a restart. On one machine each attempt has keys of its own in it. Agents of
    several machines count attempts differently, so there each attempt needs a new store.
    """
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    is_torchruns = os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    if is_torchruns and os.environ["GROUP_WORLD_SIZE"] != "1":
        sys.exit("several machines: start torchrun with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(*address, is_master=rank == 0 and not is_torchruns)
    return dist.PrefixStore(f"attempt {attempt}" if is_torchruns else "new", store)


def new_run(device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(8, 1, dtype=torch.float64).to(device)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_of(model: nn.Module, step: int, rank: int, size: int, device: torch.device) -> torch.Tensor:
    """The loss of this rank's part of a batch (48, 8). The whole batch follows from the step alone."""
    x = torch.randn(48, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
    mine = x[rank::size].to(device)
    squares = (model(mine) - mine.sum(1, keepdim=True)).square()
    return squares.sum() / len(x) * size  # DDP divides by the number of ranks


def assert_unbroken(model: nn.Module, device: torch.device) -> None:
    """Compare with one process that has done each step once."""
    unbroken, optimizer = new_run(device)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(unbroken, step, 0, 1, device).backward()
        optimizer.step()
    for mine, expected in zip(model.parameters(), unbroken.parameters(), strict=True):
        assert (mine - expected).abs().max() < 1e-12, "the end differs from that of an unbroken run"


def main(checkpoint: Path) -> None:
    rank = int(os.environ["RANK"])
    size = int(os.environ["WORLD_SIZE"])
    use_cuda = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if use_cuda else torch.device("cpu")
    if use_cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if use_cuda else "gloo",
        store=store_of_this_attempt(rank),
        rank=rank,
        world_size=size,
        device_id=device if use_cuda else None,
    )
    model, optimizer = new_run(device)
    first = 0
    if checkpoint.exists():  # of an attempt before, or of a launch before
        saved = torch.load(checkpoint, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["steps done"]
    ddp = DistributedDataParallel(model)  # all ranks meet here, so nobody saves before all have loaded
    if rank == 0:
        print(f"{size} ranks train from step {first}")
    for step in range(first, STEPS):
        if first == 0 and step == KILL_BEFORE_STEP and rank == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        loss_of(ddp, step, rank, size, device).backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and (step + 1) % SAVE_EVERY == 0:
            new = checkpoint.with_suffix(".part")
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "steps done": step + 1}
            torch.save(state, new)
            new.replace(checkpoint)  # in one step, so that a kill leaves the old file or the new one
    assert_unbroken(model, device)
    dist.barrier()
    if rank == 0:
        print(f"step {STEPS}: the weights equal those of one process that nobody killed")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
