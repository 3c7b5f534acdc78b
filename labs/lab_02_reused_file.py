"""Rank 0 meets nobody through a file left over from an earlier group. Then two ranks meet without that file.

Run it:      python labs/lab_02_reused_file.py
Written by:  notebooks/02_rendezvous.ipynb (edit it there)
"""

import shutil
import tempfile
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch.multiprocessing import start_processes


def meet(rank: int, file: str, seconds: int, expected: str, left: str = "") -> None:
    timeout = timedelta(seconds=seconds)
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{file}", rank=rank, world_size=2, timeout=timeout
        )
        dist.barrier()
        if left and rank == 0:
            shutil.copy(file, left)  # as a crash would leave it: a group that ends well deletes its file
        dist.barrier()
        dist.destroy_process_group()
        outcome = "met all"
    except RuntimeError as error:
        outcome = f"{type(error).__name__}: {error}"
    print(f"rank {rank}: {outcome}")
    assert expected in outcome, f"rank {rank} should have said {expected!r}"


if __name__ == "__main__":
    folder = tempfile.mkdtemp()
    left = f"{folder}/left"
    start_processes(meet, (f"{folder}/new", 30, "met all", left), nprocs=2, start_method="fork")
    print("the file is used again, and rank 1 has not come yet", flush=True)
    start_processes(meet, (left, 1, "connectFullMesh failed"), nprocs=1, start_method="fork")
    print("the file was deleted", flush=True)
    Path(left).unlink()
    start_processes(meet, (left, 30, "met all"), nprocs=2, start_method="fork")
    shutil.rmtree(folder)
