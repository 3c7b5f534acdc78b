"""Job A is started with the port at which job B serves its store. Then with a free one.

Run it:      python labs/lab_02_taken_port.py
Written by:  notebooks/02_rendezvous.ipynb (edit it there)
"""

import socket
import time
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.elastic.utils.distributed import get_free_port
from torch.multiprocessing import start_processes

PROCESSES = (("B", 0), ("A", 0), ("A", 1), ("B", 1))  # job and rank


def is_taken(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def meet(index: int, ports: dict[str, int], expected: list[str]) -> None:
    job, rank = PROCESSES[index]
    timeout = timedelta(seconds=30)
    address = f"tcp://127.0.0.1:{ports[job]}"
    while index > 0 and not is_taken(ports["B"]):  # rank 0 of B comes first
        time.sleep(0.1)
    try:
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2, timeout=timeout)
        met = [None, None]
        dist.all_gather_object(met, f"{job}{rank}")
        dist.barrier()
        dist.destroy_process_group()
        outcome = f"met {' and '.join(met)}"
    except dist.DistError as error:
        outcome = f"{type(error).__name__}: {error}"
    print(f"{job}{rank}: {outcome}")
    assert expected[index] in outcome, f"{job}{rank} should have said {expected[index]!r}"


if __name__ == "__main__":
    port = get_free_port()
    failures = ["met B0 and A1", "EADDRINUSE", "met B0 and A1"]
    start_processes(meet, ({"A": port, "B": port}, failures), nprocs=3, start_method="fork")
    print("two ports", flush=True)
    ports = {"A": get_free_port(), "B": get_free_port()}
    right = ["met B0 and B1", "met A0 and A1", "met A0 and A1", "met B0 and B1"]
    start_processes(meet, (ports, right), nprocs=4, start_method="fork")
