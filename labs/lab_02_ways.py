"""Four ways to form a process group. They differ in where the store is and in what must be known in advance.

Run it:      torchrun --standalone --nproc-per-node=4 labs/lab_02_ways.py
Written by:  notebooks/02_rendezvous.ipynb (edit it there)
"""

import gc
import os
import socket
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

HERE = "127.0.0.1"
TIMEOUT = timedelta(seconds=20)


def free_port() -> int:
    """A port that is free now: good enough on one machine, a race on a busy one."""
    with socket.create_server((HERE, 0)) as server:
        return server.getsockname()[1]


def check(way: str, rank: int, n: int) -> None:
    """Assert that this process is rank ``rank`` of ``n``, and that an all-reduce finds each rank once."""
    heard = torch.zeros(n, dtype=torch.int64)
    heard[dist.get_rank()] = dist.get_rank() + 1
    dist.all_reduce(heard)
    assert (dist.get_rank(), dist.get_world_size()) == (rank, n), f"{way}: this is rank {dist.get_rank()}"
    assert heard.tolist() == list(range(1, n + 1)), f"{way}: heard {heard.tolist()}"
    if rank == 0:
        print(f"{way:9} {n} ranks, together {heard.tolist()}")


def leave() -> None:
    """Destroy the group. Its store ends with its last owner, so we do not wait for the garbage collector."""
    dist.barrier()
    dist.destroy_process_group()
    gc.collect()


def main() -> None:
    rank = int(os.environ["RANK"])
    n = int(os.environ["WORLD_SIZE"])

    # 1. torchrun has set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. This is the default: "env://".
    dist.init_process_group("gloo", timeout=TIMEOUT)
    check("env://", rank, n)
    # The other ways need a port or a path that all ranks know. Rank 0 chooses, and tells the others here.
    chosen = [None, None, None]
    if rank == 0:
        # With port 0 the system picks one for the store, and nobody else can take it.
        store = dist.TCPStore(HERE, 0, n, is_master=True, timeout=TIMEOUT, wait_for_workers=False)
        chosen = [free_port(), tempfile.mkdtemp(), store.port]
    dist.broadcast_object_list(chosen)
    port, folder, port_of_store = chosen
    leave()
    # Before torch 2.15 this variable made each rank believe that torchrun serves every port.
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)

    # 2. An address of rank 0's machine, and a free port on it. Rank 0 serves the store.
    me = {"rank": rank, "world_size": n, "timeout": TIMEOUT}
    dist.init_process_group("gloo", init_method=f"tcp://{HERE}:{port}", **me)
    check("tcp://", rank, n)
    leave()

    # 3. A file that all ranks can write to. The last rank to leave deletes it.
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", **me)
    check("file://", rank, n)
    leave()

    # 4. A store that we make. Rank 0 has it already.
    if rank > 0:
        store = dist.TCPStore(HERE, port_of_store, n, timeout=TIMEOUT)
    dist.init_process_group("gloo", store=store, **me)
    check("store=", rank, n)
    if rank == 0:
        Path(folder).rmdir()  # this works with an empty folder only
    leave()


if __name__ == "__main__":
    main()
