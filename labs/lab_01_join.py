"""Join a process group, with a GPU for each rank or all ranks on the CPU. Labs import it: copy it with them.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_01_join.py
Written by:  notebooks/01_topology.ipynb (edit it there)
"""

import os
import socket
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

# Import this before any group exists; otherwise a gloo process may abort at exit, code -6 (lesson 08):
# torch's first optimizer imports it, and its functions keep the group that exists by then.
import torch.distributed.nn.functional

NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
NO_GPU = "none"


def setup(timeout: timedelta | None = None) -> torch.device:
    """Join the group that the launcher describes; return this rank's device: a GPU of its own, or the CPU.

    The CPU is for jobs without a GPU, and for RANK_BY_RANK_DEVICE=cpu. ``timeout`` bounds each wait at the
    store and in a collective; None leaves that to torch. The script ends here, with one line, if no launcher
    has started it, or if the job has fewer GPUs than ranks.
    """
    missing = [name for name in NEEDED if name not in os.environ]
    if missing:
        command = f"torchrun --standalone --nproc-per-node=2 {sys.argv[0]}"
        sys.exit(f"start me with torchrun: {command} (not set: {', '.join(missing)})")
    limit = {} if timeout is None else {"timeout": timeout}
    store, rank, world_size = next(dist.rendezvous("env://", **limit))
    device, gpu = own_device()
    # torchrun's store survives a restart, with more ranks or fewer: each start has keys of its own.
    start = f"{world_size} ranks, restart {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    gpus = count_gpus(dist.PrefixStore(start, store), rank, world_size, gpu)
    if 0 < gpus < world_size:
        mine = f"rank {rank} on {socket.gethostname()} has {device}"
        ways = "start one rank for each GPU, or all with RANK_BY_RANK_DEVICE=cpu"
        sys.exit(f"{world_size} ranks, {gpus} GPUs ({mine}): {ways}")
    backend = "nccl" if gpus else "gloo"
    bound = device if gpus else None
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, device_id=bound, **limit)
    if rank == 0:
        print(f"{world_size} ranks on {device.type} with {backend}")
    return device


def own_device() -> tuple[torch.device, str]:
    """The device for this rank, and the id of its GPU: ``NO_GPU`` for the CPU."""
    if torch.cuda.device_count() == 0 or os.environ.get("RANK_BY_RANK_DEVICE") == "cpu":
        return torch.device("cpu"), NO_GPU
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device, str(torch.cuda.get_device_properties(device).uuid)


def count_gpus(store: dist.Store, rank: int, world_size: int, gpu: str) -> int:
    """How many different GPUs the ranks have, the same number on each: all must choose the same backend.

    Rank 0 alone reads what all have written, and writes down the count: N + N reads, not N x N.
    """
    store.set(f"GPU of rank {rank}", gpu)
    if rank == 0:
        found = store.multi_get([f"GPU of rank {other}" for other in range(world_size)])
        store.set("number of GPUs", str(len(set(found) - {NO_GPU.encode()})))
    return int(store.get("number of GPUs"))


def main() -> None:
    device = setup(timeout=timedelta(minutes=2))
    print(f"rank {dist.get_rank()} is on {device}")
    dist.barrier()  # no rank leaves while another one still talks to it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
