"""Call functions in other processes: wait for the result, fetch it later, or leave it where it was made.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_23_rpc.py
Written by:  notebooks/23_rpc.ipynb (edit it there)
"""

import os
import sys
import warnings

import torch
import torch.distributed as dist
from torch.distributed import rpc

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def who() -> int:
    """The rank of the process that runs this."""
    return int(os.environ["RANK"])


def start_worker() -> list[str]:
    """Become ``worker{rank}``; return the names of all workers, when all are there.

    ``init_rpc`` finds the others by ``env://``: torchrun has set MASTER_ADDR and MASTER_PORT.
    """
    world_size = int(os.environ["WORLD_SIZE"])
    if os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"]:  # all on one machine
        os.environ.setdefault("TP_SOCKET_IFNAME", LOOPBACK)
    warnings.filterwarnings("ignore", "You are using a Backend")  # torch's own, pytorch/pytorch#149393
    rpc.init_rpc(f"worker{who()}", rank=who(), world_size=world_size)
    return [f"worker{rank}" for rank in range(world_size)]


def call_in_three_ways(there: str) -> tuple[int, list[float], list[float]]:
    """The rank of worker ``there``, one plus our own rank, and a tensor of sevens; all computed there."""
    rank = rpc.rpc_sync(there, who)  # waits for the result
    future = rpc.rpc_async(there, torch.add, args=(torch.ones(2), who()))  # returns at once
    reference = rpc.remote(there, torch.full, args=((2,), 7.0))  # returns at once, the result stays there
    assert reference.owner_name() == there
    return rank, future.wait().tolist(), reference.to_here().tolist()


def main() -> None:
    workers = start_worker()
    right = (who() + 1) % len(workers)
    answers = call_in_three_ways(workers[right])
    assert answers == (right, [1.0 + who(), 1.0 + who()], [7.0, 7.0]), answers
    assert not dist.is_initialized()  # init_rpc has made no default process group
    if who() == 0:
        print(f"workers: {', '.join(workers)}")
        print(f"worker0 called {workers[right]} three times and got {answers}")
    rpc.shutdown()  # waits for all workers, and until no call is under way


if __name__ == "__main__":
    main()
