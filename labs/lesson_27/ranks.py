"""Ranks on hosts: forks of this process, each moved to a host, so that torch is imported once."""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection, wait

import torch.distributed as dist

from shared.runtime.children import FORK
from shared.runtime.errors import CourseError
from shared.runtime.run import die_with_launcher

from lesson_27.hosts import Host

PORT = 29500  # each network has all ports to itself


class Ranks:
    """One rank on each host, which calls ``function(*args)`` in a group of all of them.

    What it returns goes through JSON. An error is told as its text, "ERROR " before it.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        function: Callable,
        *args,
        card: str = "eth0",
        at: str = "",
        timeout_s: float = 120,
    ) -> None:
        store = at or hosts[0].address
        self.pipes: list[Connection] = []
        self.processes = []
        for rank, host in enumerate(hosts):
            ours, theirs = FORK.Pipe()
            job = (host, card, f"tcp://{store}:{PORT}", rank, len(hosts), timeout_s, function, args)
            process = FORK.Process(target=work, args=(theirs, *job))
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def told(self, patience_s: float) -> list:
        """What the ranks return, by rank. None of them leaves before all have spoken."""
        end = time.monotonic() + patience_s
        for rank, pipe in enumerate(self.pipes):
            if not pipe.poll(max(0.0, end - time.monotonic())):
                raise CourseError(f"rank {rank} has said nothing for {patience_s:.0f} s")
        return [json.loads(pipe.recv()) for pipe in self.pipes]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        for pipe in self.pipes:
            pipe.close()


def work(
    pipe: Connection,
    host: Host,
    card: str,
    store: str,
    rank: int,
    size: int,
    timeout_s: float,
    function,
    args,
):
    """The life of a rank."""
    die_with_launcher()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # there C++ writes stack traces
    try:
        host.enter()
        os.environ.pop("GLOO_SOCKET_IFNAME", None)
        if card:
            os.environ["GLOO_SOCKET_IFNAME"] = card
        timeout = timedelta(seconds=timeout_s)
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size, timeout=timeout)
        answer = function(*args)
    except Exception as error:
        answer = f"ERROR {type(error).__name__}: {error}"
    pipe.send(json.dumps(answer))
    wait([pipe])  # for ever: this process is ended
    os._exit(0)


@contextmanager
def ranks_on(hosts: Sequence[Host], function: Callable, *args, **options) -> Iterator[Ranks]:
    ranks = Ranks(hosts, function, *args, **options)
    try:
        yield ranks
    finally:
        ranks.close()


def answers(hosts: Sequence[Host], function: Callable, *args, patience_s: float) -> list:
    """What healthy ranks return."""
    with ranks_on(hosts, function, *args) as ranks:
        told = ranks.told(patience_s)
    for rank, answer in enumerate(told):
        if isinstance(answer, str) and answer.startswith("ERROR"):
            raise CourseError(f"rank {rank}: {answer}")
    return told
