"""Which backend a group gets: by device, by name, by a list, or by none at all.

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


def assert_all_reduce(device: torch.device) -> None:
    """Each rank of the default group is heard once by tensors of this device."""
    x = torch.ones(1, device=device)
    dist.all_reduce(x)
    if x.item() != dist.get_world_size():
        raise CourseError(f"{x.item():.0f} ranks answered with {device.type} tensors")


def fresh_store(name: str) -> dist.Store:
    """A corner of torchrun's store that no group has used: elsewhere lie addresses that nobody answers."""
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    return dist.PrefixStore(name, store)


def leave() -> None:
    dist.barrier()
    dist.destroy_process_group()


def main(cfg: Config) -> None:
    rank, local_rank, n = read_environment()
    device = pick_device(local_rank)  # lesson 00: a GPU for each rank of this machine, else the CPU
    cpu = torch.device("cpu")
    has_gpu = device.type == "cuda"
    if has_gpu:
        torch.cuda.set_device(device)

    dist.init_process_group(pick_backend(device), timeout=cfg.timeout)
    assert dist.get_backend() == ("nccl" if has_gpu else "gloo")
    assert_all_reduce(device)
    print_on_rank_0(f"by device:  {device.type} tensors travel by {dist.get_backend()}")
    leave()

    me = {"rank": rank, "world_size": n, "timeout": cfg.timeout}
    both = "cpu:gloo,cuda:nccl"
    by_list = both if has_gpu else "cpu:gloo"
    dist.init_process_group(by_list, store=fresh_store("by a list"), **me)
    assert_all_reduce(cpu)
    assert_all_reduce(device)
    print_on_rank_0(f"by a list:  {by_list}, so each tensor goes by the backend of its device")
    leave()
    if not torch.cuda.is_available():
        try:  # each rank alone: else one might hear of the other's failure before it meets its own
            dist.init_process_group(both, store=dist.HashStore(), rank=0, world_size=1)
        except RuntimeError as error:
            if rank == 0:  # there is no group
                print(f"            {both!r} without a GPU: {error}")
        else:
            raise CourseError(f"{both!r} was to be refused on a machine without a GPU")

    # No backend named: the group holds one for each kind of device that is there.
    dist.init_process_group(store=fresh_store("by nothing"), **me)
    assert dist.get_backend() == "undefined"
    assert_all_reduce(cpu)
    assert_all_reduce(device)
    config = dist.get_backend_config()
    print_on_rank_0(f"by nothing: get_backend() says {dist.get_backend()!r}, the group holds {config}")
    leave()


if __name__ == "__main__":
    run(main, Config())
