"""Three ranks are expected, and rank 2 does not come. Then all three come.

Run it:      python labs/lab_02_missing_rank.py
Written by:  notebooks/02_rendezvous.ipynb (edit it there)
"""

from datetime import timedelta

import torch.distributed as dist
from torch.distributed.elastic.utils.distributed import get_free_port
from torch.multiprocessing import start_processes


def meet(rank: int, port: int, seconds: int, expected: list[str]) -> None:
    # Rank 0 serves the store. It waits longer, so that rank 1 can still ask it.
    timeout = timedelta(seconds=3 * seconds if rank == 0 else seconds)
    address = f"tcp://127.0.0.1:{port}"
    try:
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=3, timeout=timeout)
        dist.barrier()
        dist.destroy_process_group()
        outcome = "met all"
    except dist.DistError as error:
        outcome = f"{type(error).__name__}: {error}"
    print(f"rank {rank}: {outcome}")
    assert expected[rank] in outcome, f"rank {rank} should have said {expected[rank]!r}"


if __name__ == "__main__":
    failures = ["2/3 clients joined", "wait timeout"]
    start_processes(meet, (get_free_port(), 2, failures), nprocs=2, start_method="fork")
    print("rank 2 comes", flush=True)
    start_processes(meet, (get_free_port(), 30, ["met all"] * 3), nprocs=3, start_method="fork")
