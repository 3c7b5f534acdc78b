"""The first thing to run on new machines: who is where, is a sum right, and how fast is the network?

On each machine, with the name or address of the first one as HEAD, and its own address as MINE:
    torchrun --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-id=any-word \
        --rdzv-endpoint=HEAD:29500 --rdzv-conf=join_timeout=600 --local-addr=MINE lab_27_who.py

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_27_who.py
Written by:  notebooks/27_many_machines.ipynb (edit it there)
"""

import os
import socket
import time

import torch
import torch.distributed as dist

from lab_01_join import setup  # nccl with a GPU for each rank, else gloo on the CPU

NUMBERS = ("RANK", "LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")
ON_CPU, ON_GPU = 2**20, 2**28  # elements of float32: 4 MiB, 1 GiB; less does not fill a fast network


def places() -> list[dict]:
    """What torchrun told each rank, and the name of its machine, by rank. Collective."""
    mine = {name: int(os.environ[name]) for name in NUMBERS}
    mine["name"] = socket.gethostname()
    everyone: list[dict] = [{}] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def problems(everyone: list[dict]) -> list[str]:
    """What is wrong with the places: each machine has one number and one name, its ranks count from 0."""
    wrong = []
    machines = sorted({place["GROUP_RANK"] for place in everyone})
    if machines != list(range(everyone[0]["GROUP_WORLD_SIZE"])):
        wrong.append(f"the numbers of the machines are {machines}")
    for machine in machines:
        ranks = [place for place in everyone if place["GROUP_RANK"] == machine]
        names = {place["name"] for place in ranks}
        if len(names) != 1:
            wrong.append(f"machine {machine} has several names: {names}")
        if [place["LOCAL_RANK"] for place in ranks] != list(range(ranks[0]["LOCAL_WORLD_SIZE"])):
            wrong.append(f"machine {machine}: its ranks do not count from 0")
    if len({place["name"] for place in everyone}) < len(machines):
        wrong.append("two agents run on one machine: was this what you wanted?")
    return wrong


def gigabits_per_second(device: torch.device) -> float:
    """What leaves each rank in a second of a large all-reduce, in Gbit. Collective."""
    n = dist.get_world_size()
    x = torch.ones(ON_GPU if device.type == "cuda" else ON_CPU, device=device)
    best = float("inf")
    for _ in range(4):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(x)
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 8e-9 * 2 * (n - 1) / n * x.nbytes / best


def main() -> None:
    device = setup()
    rank, world_size = dist.get_rank(), dist.get_world_size()

    everyone = places()
    x = torch.tensor([float(rank)], device=device)
    dist.all_reduce(x)
    expected = world_size * (world_size - 1) / 2
    assert x.item() == expected, f"the sum of all ranks is {x.item():g}, expected {expected:g}"
    speed = gigabits_per_second(device)
    if rank == 0:
        for number, place in enumerate(everyone):
            print(f"rank {number}: local rank {place['LOCAL_RANK']} on machine {place['GROUP_RANK']}")
        print(f"{world_size} ranks, machines: {everyone[0]['GROUP_WORLD_SIZE']}, the sum is right")
        print(f"in a large all-reduce {speed:.2f} Gbit/s leave each rank")
    wrong = problems(everyone)
    assert not wrong, "; ".join(wrong)

    dist.barrier()  # no rank leaves while another one still talks to it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
