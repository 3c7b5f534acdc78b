"""Ranks on hosts: forks of this process, each moved to a host, so that torch is imported once."""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from shared.runtime.children import Child
from shared.runtime.errors import CourseError

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
        self.children: list[Child] = []
        for rank, host in enumerate(hosts):
            job = (host, card, f"tcp://{store}:{PORT}", rank, len(hosts), timeout_s, function, args)
            self.children.append(Child(work, *job, stays=True))

    def told(self, patience_s: float) -> list:
        """What the ranks return, by rank. None of them leaves before all have spoken."""
        end = time.monotonic() + patience_s
        for rank, child in enumerate(self.children):
            if not child.receiver.poll(max(0.0, end - time.monotonic())):
                raise CourseError(f"rank {rank} has said nothing for {patience_s:.0f} s")
        return [json.loads(child.receiver.recv()[0]) for child in self.children]

    def close(self) -> None:
        for child in self.children:
            child.close()


def work(
    host: Host, card: str, store: str, rank: int, size: int, timeout_s: float, function: Callable, args: tuple
) -> str:
    """What a rank does, and what it says of it."""
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
    return json.dumps(answer)


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
