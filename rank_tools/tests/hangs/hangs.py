"""Ways to hang, each in a few lines: hangs.py CASE. They would last for half an hour."""

import ctypes
import os
import queue
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])
LONG_S = 600


def late() -> None:
    """Rank 1 comes once there is a file that the command line names; then both get to their end."""
    dist.init_process_group("gloo")
    if RANK == 1:
        while not Path(sys.argv[2]).exists():
            time.sleep(0.5)
    x = torch.ones(4)
    dist.all_reduce(x)
    print(f"rank {RANK} has got {x[0].item()}")


def kinds() -> None:
    dist.init_process_group("gloo")
    x = torch.ones(4)
    if RANK == 0:
        dist.all_reduce(x)
    else:
        dist.broadcast(x, src=0)
    dist.barrier()


def shapes() -> None:
    dist.init_process_group("gloo")
    with suppress(RuntimeError):
        dist.all_reduce(torch.ones(2 + RANK))
    time.sleep(LONG_S)


def died() -> None:
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.init_process_group("gloo")


def failed() -> None:
    if RANK == 1:
        raise ValueError("no such data set")
    dist.init_process_group("gloo")


def groups() -> None:
    dist.init_process_group("gloo")
    both = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    if RANK == 1:
        both.reverse()
    for group in both:
        dist.all_reduce(torch.ones(1), group=group)


def members_only() -> None:
    dist.init_process_group("gloo")
    if RANK == 0:
        dist.new_group([0, 1])
    time.sleep(LONG_S)


def both_send() -> None:
    dist.init_process_group("gloo")
    dist.send(torch.ones(10), 1 - RANK)
    dist.recv(torch.ones(10), 1 - RANK)


def no_sender() -> None:
    dist.init_process_group("gloo")
    if RANK == 0:
        dist.recv(torch.ones(10), src=1)
    queue.Queue().get()


def one_starts() -> None:
    dist.init_process_group("gloo")


def stopped() -> None:
    dist.init_process_group("gloo")
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(4))


def silent() -> None:
    dist.init_process_group("gloo")
    if RANK == 1:
        ctypes.PyDLL(None).sleep(LONG_S)  # PyDLL does not give the interpreter away
    dist.all_reduce(torch.ones(4))


def key() -> None:
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    if RANK == 0:
        store.get("a key that nobody sets")
    dist.barrier()


def outside() -> None:
    dist.init_process_group("gloo")
    dist.barrier()
    queue.Queue().get()


def swapped() -> None:
    dist.init_process_group("gloo")
    a, b = torch.ones(1), torch.full((1,), 100.0)

    def reduce_a() -> None:
        dist.all_reduce(a)

    def reduce_b() -> None:
        dist.all_reduce(b)

    for reduce in (reduce_a, reduce_b) if RANK == 0 else (reduce_b, reduce_a):
        reduce()
    queue.Queue().get()


def left_out() -> None:
    """Rank 1 catches an exception in its second step, so that it has made one call less than rank 0."""
    dist.init_process_group("gloo")
    x = torch.ones(4)
    for step in range(3):
        with suppress(ValueError):
            if RANK == 1 and step == 1:
                raise ValueError("a bad record")
            dist.all_reduce(x, op=dist.ReduceOp.MAX)
        dist.all_reduce(x)
    queue.Queue().get()


def thread_died() -> None:
    """The thread that fetches ends by an exception, and its reader waits for ever."""
    dist.init_process_group("gloo")
    fetched: queue.Queue = queue.Queue()

    def fetch() -> None:
        for number in range(3):
            if RANK == 1 and number == 2:
                raise ValueError("a bad record")
            fetched.put(torch.ones(4))

    threading.Thread(target=fetch, name="prefetch").start()
    for _ in range(3):
        dist.all_reduce(fetched.get())


if __name__ == "__main__":
    globals()[sys.argv[1]]()
