"""Four mistakes at a rendezvous: what each process says, and that the fix works.

The processes are forks of this one, because torchrun would end all ranks when one fails. They provoke
mistakes: do not start a job this way.

Run it:      python labs/lesson_02/proof_mistakes.py
"""

import socket
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from shared.runtime.children import Child
from shared.runtime.errors import CourseError
from shared.runtime.ports import HERE, free_port
from shared.runtime.run import run


@dataclass(frozen=True)
class Config:
    short_s: int = 2  # where a wait is in vain
    long_s: int = 60


@dataclass(frozen=True)
class Process:
    """Who looks for the others where, and how long."""

    name: str
    address: str
    rank: int
    world_size: int
    timeout_s: int

    def meet(self, crashes: bool = False) -> str:
        """Form the group, and say who is in it. One that ``crashes`` leaves without a goodbye."""
        me = {"rank": self.rank, "world_size": self.world_size, "timeout": timedelta(seconds=self.timeout_s)}
        dist.init_process_group("gloo", init_method=self.address, **me)
        names = [None] * self.world_size
        dist.all_gather_object(names, self.name)
        dist.barrier()
        if not crashes:
            dist.destroy_process_group()
        return f"met {' and '.join(names)}"


def ranks(address: str, count: int, world_size: int, timeout_s: int) -> list[Process]:
    return [Process(f"rank {rank}", address, rank, world_size, timeout_s) for rank in range(count)]


def free_address() -> str:
    return f"tcp://{HERE}:{free_port()}"


def is_served(address: str) -> bool:
    with socket.socket() as client:
        return client.connect_ex((HERE, int(address.rpartition(":")[2]))) == 0


def tell(what: str, processes: list[Process], expected: list[str], crash: bool = False) -> None:
    """Let all come, the first one first, and print what they say. Raises ``CourseError`` if it is another."""
    print(what)
    first = processes[0]
    children = [Child(first.meet, crash)]
    give_up = time.monotonic() + first.timeout_s
    while first.address.startswith("tcp") and not is_served(first.address) and time.monotonic() < give_up:
        time.sleep(0.05)
    children += [Child(process.meet, crash) for process in processes[1:]]
    for process, child, words in zip(processes, children, expected, strict=True):
        said, _ = child.outcome(2 * first.timeout_s + 60)
        print(f"  {process.name}: {said}")
        if words not in said:
            raise CourseError(f"{what}: {process.name} said {said!r}, expected {words!r}")


def missing_rank(cfg: Config) -> None:
    here = free_address()
    first, second = ranks(here, 2, 3, cfg.short_s)
    first = Process(first.name, here, 0, 3, 3 * cfg.short_s)  # it serves the store, and rank 1 has to ask it
    tell("a missing rank", [first, second], ["2/3 clients joined", "wait timeout after"])
    tell("rank 2 comes", ranks(free_address(), 3, 3, cfg.long_s), 3 * ["met rank 0 and rank 1 and rank 2"])


def wrong_address(cfg: Config) -> None:
    here, elsewhere = free_address(), free_address()
    lost = Process("rank 1", elsewhere, 1, 2, cfg.short_s)
    expected = ["1/2 clients joined", f"trying to connect to ({HERE}, {elsewhere.rpartition(':')[2]})"]
    tell("a wrong address", [*ranks(here, 1, 2, cfg.short_s), lost], expected)
    tell("one address", ranks(free_address(), 2, 2, cfg.long_s), 2 * ["met rank 0 and rank 1"])


def taken_port(cfg: Config) -> None:
    a, b = free_address(), free_address()
    for what, place, expected in (
        ("a taken port", b, ["met B0 and A1", "EADDRINUSE", "met B0 and A1"]),
        ("two ports", a, ["met B0 and B1", "met A0 and A1", "met A0 and A1", "met B0 and B1"]),
    ):
        jobs = [("B", 0, b), ("A", 0, place), ("A", 1, place), ("B", 1, b)][: len(expected)]
        tell(what, [Process(f"{job}{r}", at, r, 2, cfg.long_s) for job, r, at in jobs], expected)


def reused_file(cfg: Config) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "meeting"
        both = ranks(f"file://{file}", 2, 2, cfg.long_s)
        tell("a file, and a crash", both, 2 * ["met rank 0 and rank 1"], crash=True)
        tell("the file again, rank 1 is late", ranks(f"file://{file}", 1, 2, 1), ["connectFullMesh failed"])
        file.unlink()
        tell("the file was deleted", both, 2 * ["met rank 0 and rank 1"])


def main(cfg: Config) -> None:
    missing_rank(cfg)
    wrong_address(cfg)
    taken_port(cfg)
    reused_file(cfg)


if __name__ == "__main__":
    run(main, Config())
