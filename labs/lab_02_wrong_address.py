"""Rank 1 looks for the store at another port than rank 0's. Then at the same.

Run it:      python labs/lab_02_wrong_address.py
Written by:  notebooks/02_rendezvous.ipynb (edit it there)
"""

from datetime import timedelta

import torch.distributed as dist
from torch.distributed.elastic.utils.distributed import get_free_port
from torch.multiprocessing import start_processes


def meet(rank: int, ports: list[int], seconds: int, expected: list[str]) -> None:
    timeout = timedelta(seconds=seconds)
    address = f"tcp://127.0.0.1:{ports[rank]}"
    try:
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2, timeout=timeout)
        dist.barrier()
        dist.destroy_process_group()
        outcome = "met all"
    except dist.DistError as error:
        outcome = f"{type(error).__name__}: {error}"
    print(f"rank {rank}: {outcome}")
    assert expected[rank] in outcome, f"rank {rank} should have said {expected[rank]!r}"


if __name__ == "__main__":
    ports = [get_free_port(), get_free_port()]
    failures = ["1/2 clients joined", f"trying to connect to (127.0.0.1, {ports[1]})"]
    start_processes(meet, (ports, 2, failures), nprocs=2, start_method="fork")
    print("one port", flush=True)
    start_processes(meet, ([get_free_port()] * 2, 30, ["met all"] * 2), nprocs=2, start_method="fork")
