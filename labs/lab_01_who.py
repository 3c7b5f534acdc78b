"""Every rank says who it is, and rank 0 prints the answers in rank order.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_01_who.py
Written by:  notebooks/01_topology.ipynb
"""

import os

import torch
import torch.distributed as dist

NUMBERS = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")


def who_am_i() -> dict[str, int]:
    """The numbers that torchrun gave this process, under the names of their variables."""
    return {name: int(os.environ[name]) for name in NUMBERS}


def rank_by_counting(me: dict[str, int], everyone: list[dict[str, int]]) -> int:
    """My rank as it should be: the number of processes on all nodes before mine, plus my local rank."""
    before = [other for other in everyone if other["GROUP_RANK"] < me["GROUP_RANK"]]
    return len(before) + me["LOCAL_RANK"]


def setup() -> torch.device:
    """Join the group that torchrun describes; return this rank's device: a GPU of its own, else the CPU."""
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu")
    device_id = None
    if torch.accelerator.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device(torch.accelerator.current_accelerator().type, local_rank)
        device_id = device
        torch.accelerator.set_device_index(local_rank)
    dist.init_process_group(dist.get_default_backend_for_device(device), device_id=device_id)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks on {device.type} with {dist.get_backend()}")
    return device


def main() -> None:
    me = who_am_i()
    setup()

    everyone: list[dict[str, int]] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, me)  # afterwards each rank holds the answers of all, by rank
    assert me["RANK"] == dist.get_rank(), f"RANK is {me['RANK']}, the group says {dist.get_rank()}"
    assert me["RANK"] == rank_by_counting(me, everyone), f"counting does not give rank {me['RANK']}"
    if dist.get_rank() == 0:
        for process in everyone:
            print(
                f"rank {process['RANK']} of {process['WORLD_SIZE']}: "
                f"local rank {process['LOCAL_RANK']} of {process['LOCAL_WORLD_SIZE']} "
                f"on node {process['GROUP_RANK']} of {process['GROUP_WORLD_SIZE']}"
            )

    dist.barrier()  # no rank leaves while another one still talks to it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
