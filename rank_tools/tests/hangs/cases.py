"""Jobs for the doctor, each in a few lines: hangs, deaths, and jobs that are well. cases.py CASE

The lines that the doctor is to name end in ``# here``, with a number where there are several.
"""

import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

RANK = int(os.environ.get("RANK", -1))
LONG_S = 600
WORK_S = 30
TOLD = Path(os.environ.get("HANGS_TOLD", os.devnull))  # it exists when the doctor has told something


def form(**options) -> None:
    dist.init_process_group("gloo", **options)
    dist.barrier()


class Slow(Dataset):
    """Rank 1's later samples need long: by sleeping, or by computing."""

    def __init__(self, computes: bool) -> None:
        self.computes = computes

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if RANK == 1 and index == 6:
            if self.computes:
                work()
            else:
                time.sleep(LONG_S)  # here loader_worker
        return torch.ones(2)


def compute(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


def work() -> None:
    """Compute for ``WORK_S``, and on a busy machine until the doctor has told it."""
    compute(WORK_S)
    last = time.monotonic() + LONG_S
    while not TOLD.exists() and time.monotonic() < last:
        sum(range(1000))


def loader_worker() -> None:
    form()
    for batch in DataLoader(Slow(computes=False), batch_size=2, num_workers=1):
        dist.all_reduce(batch.sum(0))  # here loader_worker 0


def debugger() -> None:
    form()
    if RANK == 1:
        breakpoint()  # here debugger call
    dist.all_reduce(torch.ones(3))  # here debugger


def asks() -> None:
    form()
    if RANK == 1:
        input("resume? ")  # here asks
    dist.all_reduce(torch.ones(3))


def save() -> None:
    dist.barrier()  # here saves 0


def saves() -> None:
    form()
    for step in range(4):
        if step == 2 and RANK == 0:
            save()
        dist.all_reduce(torch.ones(3))  # here saves 1


def a_member_is_elsewhere() -> None:
    """Four ranks; of the pair 0 and 1, rank 1 goes on to the barrier."""
    form()
    pair = dist.new_group([0, 1])
    if RANK in (0, 2):
        dist.all_reduce(torch.ones(3), group=pair)  # here a_member_is_elsewhere 0
    dist.barrier()  # here a_member_is_elsewhere 1


def hold(one: threading.Lock, other: threading.Lock) -> None:
    with one:
        time.sleep(0.5)
        with other:  # here threads
            pass


def threads() -> None:
    form()
    if RANK == 1:
        locks = [threading.Lock(), threading.Lock()]
        both = [threading.Thread(target=hold, args=pair) for pair in (locks, locks[::-1])]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()  # here threads main
    dist.all_reduce(torch.ones(3))


def wrong_peer() -> None:
    """Three ranks; rank 1 receives from 2 what rank 0 sends, and rank 2 has nothing to do with it."""
    form()
    x = torch.ones(10_000_000)
    if RANK == 0:
        dist.isend(x, 1).wait()
    elif RANK == 1:
        dist.irecv(x, src=RANK + 1).wait()  # here wrong_peer
    dist.barrier()


def wrong_ring() -> None:
    """Three ranks; each receives from the one that it sends to."""
    form()
    x, following = torch.ones(10_000_000), (RANK + 1) % 3
    ops = [dist.P2POp(dist.isend, x, following), dist.P2POp(dist.irecv, x.clone(), following)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()  # here wrong_ring


def c_holds_the_interpreter() -> None:
    form()
    if RANK == 1:
        re.match("(a*)*b", "a" * 60)  # here c_holds_the_interpreter
    dist.all_reduce(torch.ones(3))


def c_from_the_start() -> None:
    """The last thing that rank 1 has answered is that it waits for the group."""
    if RANK == 0:
        time.sleep(2)  # less than the doctor waits
    form()
    if RANK == 1:
        re.match("(a*)*b", "a" * 60)  # here c_from_the_start
    dist.all_reduce(torch.ones(3))


def waits_for_a_program() -> None:
    form()
    if RANK == 1:
        subprocess.run(["sleep", str(LONG_S)], check=True)  # here waits_for_a_program
    dist.all_reduce(torch.ones(3))


def fails_and_stays() -> None:
    form()
    if RANK == 1:
        threading.Thread(target=time.sleep, args=(LONG_S,)).start()
        raise ValueError("no such file")  # here fails_and_stays
    dist.all_reduce(torch.ones(3))


def uneven() -> None:
    form()
    ddp = DistributedDataParallel(nn.Linear(4, 1))
    for _ in range(2 + RANK):
        ddp(torch.ones(2, 4)).sum().backward()  # here uneven 1
    if RANK == 0:
        dist.barrier()  # here uneven 0


def two_roots() -> None:
    form()
    dist.broadcast(torch.ones(3), src=1 - RANK)  # here two_roots


def rendezvous() -> None:
    """Started with --nnodes=2 on one machine: no rank is ever started."""


def killed() -> None:
    form()
    if RANK == 1:
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGKILL)).start()
        time.sleep(LONG_S)  # here killed
    dist.all_reduce(torch.ones(3))


def leaves() -> None:
    form()
    if RANK == 1:
        threading.Timer(1, os._exit, (0,)).start()
        time.sleep(LONG_S)  # here leaves
    dist.all_reduce(torch.ones(3))


def sizes() -> None:
    form()
    dist.all_reduce(torch.ones(1000 + 2000 * RANK))  # here sizes


def leaves_one_out() -> None:
    """Rank 1 catches an exception and skips a call; its next call has another size."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so that the other rank has time to fail, too
    form()
    for step in range(3):
        try:
            if RANK == 1 and step == 1:
                raise ValueError("a bad record")
            dist.all_reduce(torch.ones(1000))  # here leaves_one_out 0
        except ValueError:
            pass
        dist.all_reduce(torch.ones(3000))  # here leaves_one_out 1


def types() -> None:
    form()
    dist.all_reduce(torch.ones(1000, dtype=torch.bfloat16 if RANK else torch.float32))  # here types


def other_order() -> None:
    """Three ranks; on rank 2 torch gives the name 1 to the other group. Who gets how far is chance."""
    form()
    pairs = {}
    for pair in ((1, 2), (0, 1)) if RANK == 2 else ((0, 1), (1, 2)):
        pairs[pair] = dist.new_group(list(pair))
    mine = (1, 2) if RANK == 2 else (0, 1)
    dist.all_reduce(torch.ones(3), group=pairs[mine])
    dist.barrier()


def tidy() -> None:
    dist.barrier()  # here waits_in_finally


def waits_in_finally() -> None:
    form()
    try:
        if RANK == 1:
            raise ValueError("no such file")  # here waits_in_finally raised
        dist.all_reduce(torch.ones(3))
    finally:
        tidy()


def fails() -> None:
    form()
    if RANK == 1:
        raise ValueError("no such file")  # here fails
    dist.all_reduce(torch.ones(3))


def runs_out_of_time() -> None:
    form(timeout=timedelta(seconds=8))
    if RANK == 1:
        time.sleep(LONG_S)  # here runs_out_of_time
    dist.all_reduce(torch.ones(3))  # here runs_out_of_time 0


def spawned_rank(rank: int, port: int) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    if rank == 1:
        raise ValueError("no such file")  # here spawns
    dist.barrier()


def spawns() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    mp.spawn(spawned_rank, args=(port,), nprocs=2)


SERVER = """
import os, sys, time
end = time.monotonic() + 30
while time.monotonic() < end or not os.path.exists(sys.argv[1]):
    os.write(1, bytes(60_000))
    time.sleep(0.5)
"""


def downloads() -> None:
    """Well: rank 0 gets some data in each half of a second, and computes next to nothing."""
    form()
    if RANK == 0:
        ours, theirs = tcp_pair()
        server = subprocess.Popen([sys.executable, "-S", "-c", SERVER, TOLD], stdout=theirs.fileno())
        theirs.close()
        while ours.recv(65_536):
            pass
        server.wait()
    dist.barrier()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


def loads_slowly() -> None:
    """Well: rank 1's worker computes for one sample."""
    form()
    for batch in DataLoader(Slow(computes=True), batch_size=2, num_workers=1):
        dist.all_reduce(batch.sum(0))


def prepares() -> None:
    """Well: rank 0 waits for a process that computes."""
    form()
    if RANK == 0:
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join()
    dist.barrier()


def is_well() -> None:
    form()
    for _ in range(5):
        dist.all_reduce(torch.ones(3))
        compute(0.2)


def all_in_c_from_the_start() -> None:
    """All are well, and silent. The last thing that rank 1 has answered is that it waits for the group."""
    if RANK == 0:
        time.sleep(2)
    form()
    sum(range(4_000_000_000))
    dist.all_reduce(torch.ones(3))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    if dist.is_initialized():
        dist.destroy_process_group()
