"""Which backend a group gets: by device, by name, or by none at all.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_02_backend.py
Written by:  notebooks/02_rendezvous.ipynb
"""

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from shared.runtime.errors import CourseError
from shared.runtime.group import pick_device, read_environment
from shared.runtime.report import print_on_rank_0
from shared.runtime.run import run


@dataclass(frozen=True)
class Config:
    timeout: timedelta = timedelta(seconds=20)


def pick_backend(device: torch.device) -> str:
    """The backend that moves tensors of this device: gloo for the CPU, nccl for CUDA devices.

    torch keeps the table: ``dist.get_default_backend_for_device``.
    """
    backend = dist.get_default_backend_for_device(device)
    if not dist.is_backend_available(backend):
        raise CourseError(f"{backend}, for {device.type} tensors, is not built into this torch")
    return backend


def all_reduce_works(device: torch.device, n: int) -> bool:
    x = torch.ones(1, device=device)
    dist.all_reduce(x)
    return x.item() == n


def main(cfg: Config) -> None:
    rank, local_rank, n = read_environment()
    device = pick_device(local_rank)  # lesson 00: a GPU for each rank of this machine, else the CPU
    if device.type == "cuda":
        torch.cuda.set_device(device)

    dist.init_process_group(pick_backend(device), timeout=cfg.timeout)
    assert dist.get_backend() == {"cpu": "gloo", "cuda": "nccl"}[device.type]
    assert all_reduce_works(device, n)
    print_on_rank_0(f"by device:  {device.type} tensors travel by {dist.get_backend()}")
    dist.barrier()
    dist.destroy_process_group()

    # No backend named: the group holds one for each kind of device that is there. It meets in a corner of its
    # own in torchrun's store: under the keys of the first group lie addresses that nobody answers any more.
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    store = dist.PrefixStore("second group", store)
    dist.init_process_group(store=store, rank=rank, world_size=n, timeout=cfg.timeout)
    assert dist.get_backend() == "undefined"
    assert all_reduce_works(torch.device("cpu"), n) and all_reduce_works(device, n)
    config = dist.get_backend_config()
    print_on_rank_0(f"by nothing: get_backend() says {dist.get_backend()!r}, the group holds {config}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run(main, Config())
