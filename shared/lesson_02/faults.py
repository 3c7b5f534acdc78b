"""Ten ways to miss each other: what each process says, and how they meet after all.

Run it:  python -m shared.lesson_02.faults
"""

import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_nccl_timeout, default_pg_timeout

from shared.runtime.errors import CourseError
from shared.runtime.ports import HERE, free_port, is_taken
from shared.runtime.processes import Child
from shared.runtime.results import record_results
from shared.runtime.run import run

NOWHERE = "no-such-host.invalid"  # nobody's name: RFC 6761 keeps .invalid free
# What differs from run to run, and what is printed instead.
VARYING = {
    r"after \d+ seconds": "after N seconds",
    r"(port: |, )\d{4,}": r"\1PORT",
    # An address of ranks that are gone: nobody listens there, or by now somebody else.
    r"RuntimeError: .*(connectFullMesh failed|Connect timeout|reset by peer|closed by peer).*": (
        "RuntimeError: ... Connection refused, Connect timeout, or Connection reset by peer"
    ),
}


@dataclass(frozen=True)
class Config:
    patience_s: float = 20.0  # timeout of a rendezvous that is to succeed
    limit_s: float = 10.0  # then a process that is to fail is ended


@dataclass(frozen=True)
class Attempt:
    """How one process tries to form a group of ``n``, and introduces itself there, such as A0: job and rank.

    Attributes:
        method: a URL for ``init_process_group``; None: the call is forgotten.
        timeout_s: retries to connect more than double it, and gloo waits five times as long.
        crash: end in mid-work, without leaving the group.
        second: this is the second group in one store, under ``reused`` keys or under ``fresh`` ones.
        stay_away: do not come to the second group.
    """

    n: int
    method: str | None
    timeout_s: float = 2.0
    backend: str = "gloo"
    job: str = "A"
    crash: bool = False
    second: str = ""
    stay_away: bool = False


def meet(rank: int, attempt: Attempt) -> str:
    """Form the group and return whom this process met there, in rank order."""
    time.sleep(0.3 * rank)  # a rank that comes before rank 0 would have to try again
    how = {"init_method": attempt.method}
    if attempt.second:
        how = {"store": store_of_an_earlier_group(rank, attempt)}
    if attempt.stay_away:
        time.sleep(60)
    if attempt.method is not None:
        timeout = timedelta(seconds=attempt.timeout_s)
        dist.init_process_group(attempt.backend, rank=rank, world_size=attempt.n, timeout=timeout, **how)
    names = [None] * attempt.n
    dist.all_gather_object(names, f"{attempt.job}{rank}")
    if attempt.crash:
        os._exit(1)
    dist.barrier()
    dist.destroy_process_group()
    return f"met {', '.join(names)}"


def store_of_an_earlier_group(rank: int, attempt: Attempt) -> dist.Store:
    """Form a group by a ``TCPStore``, leave it, and return the store for the next one."""
    patience = timedelta(seconds=20)
    host, port = attempt.method.removeprefix("tcp://").split(":")
    store = dist.TCPStore(host, int(port), attempt.n, is_master=rank == 0, timeout=patience)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=attempt.n, timeout=patience)
    dist.barrier()
    dist.destroy_process_group()
    if attempt.second == "fresh":
        return dist.PrefixStore("second group", store)
    return store


@dataclass(frozen=True)
class Mistake:
    """What ranks do wrong, what they say, and how all of them meet after one thing was changed.

    ``wrong`` is {rank: how it tries}; a rank that is missing there does not come. ``says`` is {rank: regular
    expression}. In ``right`` all ranks try alike.
    """

    name: str
    wrong: dict[int, Attempt]
    says: dict[int, str]
    cure: str
    right: Attempt


def cannot_connect(host: str) -> str:
    return rf"^DistNetworkError: The client socket has timed out .* connect to \({host}, "


def url() -> str:
    return f"tcp://{HERE}:{free_port()}"


def a_rank_is_missing(patience_s: float) -> list[Mistake]:
    without_2, without_0, forgotten = url(), url(), url()
    return [
        Mistake(
            "missing rank",
            # Who gives up first takes the store along. So rank 0 waits longer, and rank 1 can tell its story.
            wrong={0: Attempt(3, without_2, timeout_s=5), 1: Attempt(3, without_2)},
            says={
                0: "^DistStoreError: Timed out .* 2/3 clients joined",
                1: "^DistStoreError: wait timeout after",
            },
            cure="rank 2 comes",
            right=Attempt(3, without_2, patience_s),
        ),
        Mistake(
            "no rank 0",
            wrong={1: Attempt(3, without_0), 2: Attempt(3, without_0)},
            says={1: cannot_connect(HERE), 2: cannot_connect(HERE)},
            cure="rank 0 comes",
            right=Attempt(3, without_0, patience_s),
        ),
        Mistake(
            "no group",
            wrong={0: Attempt(2, None)},
            says={0: "^ValueError: Default process group has not been initialized"},
            cure="init_process_group comes first",
            right=Attempt(2, forgotten, patience_s),
        ),
    ]


def a_wrong_address(taken: int, patience_s: float) -> list[Mistake]:
    """``taken`` is the port of another job's rank 0."""
    here, elsewhere, good = url(), url(), url()
    nowhere = good.replace(HERE, NOWHERE)
    another = url()
    return [
        Mistake(
            "wrong address",
            wrong={0: Attempt(2, here), 1: Attempt(2, elsewhere)},
            says={0: "^DistStoreError: Timed out .* 1/2 clients joined", 1: cannot_connect(HERE)},
            cure="the address that rank 0 has",
            right=Attempt(2, here, patience_s),
        ),
        Mistake(
            "unknown name",
            wrong={0: Attempt(2, nowhere), 1: Attempt(2, nowhere)},
            says={0: cannot_connect(NOWHERE), 1: cannot_connect(NOWHERE)},
            cure="an address in place of the name",
            right=Attempt(2, good, patience_s),
        ),
        Mistake(
            "no address",
            wrong={0: Attempt(2, "env://")},
            says={0: "MASTER_ADDR expected, but not set"},
            cure="MASTER_ADDR set for rank 0 as well",
            right=Attempt(2, "env://", patience_s),
        ),
        Mistake(
            "taken port",
            wrong={
                0: Attempt(2, f"tcp://{HERE}:{taken}", patience_s),
                1: Attempt(2, f"tcp://{HERE}:{taken}", patience_s),
            },
            says={
                0: "^DistNetworkError: The server socket has failed to listen .* EADDRINUSE",
                1: "^met B0, A1$",
            },
            cure="a free port",
            right=Attempt(2, another, patience_s),
        ),
    ]


def old_keys(left: Path, patience_s: float) -> list[Mistake]:
    """``left`` is a file that a crash has left behind."""
    store = url()
    refused = "^RuntimeError: .*(connectFullMesh failed|Connect timeout|reset by peer|closed by peer)"
    return [
        Mistake(
            "reused file",
            wrong={0: Attempt(2, f"file://{left}", timeout_s=1)},
            says={0: refused},
            cure="the file deleted",
            right=Attempt(2, f"file://{left}", patience_s),
        ),
        Mistake(
            "reused store",
            wrong={
                0: Attempt(2, store, timeout_s=1, second="reused"),
                1: Attempt(2, store, second="reused", stay_away=True),
            },
            says={0: refused},
            cure="fresh keys: PrefixStore",
            right=Attempt(2, url(), patience_s, second="fresh"),
        ),
    ]


def no_gpu(patience_s: float) -> list[Mistake]:
    if torch.cuda.is_available():
        return []
    address = url()
    attempt = Attempt(2, address, patience_s, backend="nccl")
    says = "requires at least one CUDA device|no GPUs found|have NCCL built in"  # depends on torch's version
    right = Attempt(2, address, patience_s)
    return [Mistake("nccl, no GPU", {0: attempt, 1: attempt}, {0: says, 1: says}, "gloo", right)]


def leave_a_file_behind(cfg: Config) -> Path:
    """Two ranks meet by a file and crash."""
    left = Path(tempfile.mkdtemp(prefix="rank-by-rank-")) / "meeting"
    attempt = Attempt(2, f"file://{left}", cfg.patience_s, crash=True)
    children = [Child(meet, rank, attempt) for rank in range(2)]
    for child in children:
        child.outcome(cfg.patience_s)
    return left


def show_mistakes(mistakes: list[Mistake], cfg: Config) -> dict[str, float]:
    """Let ranks make their mistakes, print what they say; return {mistake: seconds until all have spoken}."""
    seconds = {}
    tries = []  # all at once: most of them only wait
    for mistake in mistakes:
        tries.append({rank: Child(meet, rank, attempt) for rank, attempt in mistake.wrong.items()})
    for mistake, children in zip(mistakes, tries, strict=True):
        print(mistake.name)
        seconds[mistake.name] = 0.0
        for rank, expected in mistake.says.items():
            message, waited = children[rank].outcome(cfg.limit_s)
            seconds[mistake.name] = max(seconds[mistake.name], waited)
            if not re.search(expected, message):
                raise CourseError(f"{mistake.name}: rank {rank} said {message!r}, expected {expected!r}")
            for varying, instead in VARYING.items():
                message = re.sub(varying, instead, message)
            print(f"  rank {rank}: {message}")
        for rank in mistake.wrong.keys() - mistake.says.keys():
            children[rank].outcome(0)  # it stays away, so it has nothing to say
    return seconds


def show_cures(mistakes: list[Mistake], cfg: Config) -> None:
    """All ranks of each job try again, and must meet each other."""
    tries = []
    for mistake in mistakes:
        tries.append([Child(meet, rank, mistake.right) for rank in range(mistake.right.n)])
    for mistake, children in zip(mistakes, tries, strict=True):
        everyone = ", ".join(f"A{rank}" for rank in range(mistake.right.n))
        for child in children:
            message, _ = child.outcome(cfg.patience_s)
            if message != f"met {everyone}":
                raise CourseError(f"{mistake.name}: after the cure a rank said {message!r}")
        print(f"{mistake.name:13} cured by: {mistake.cure}")


def main(cfg: Config) -> None:
    # So long would most of them wait without ours. A torch without nccl has no second number.
    assert default_pg_timeout == timedelta(minutes=30)
    assert default_pg_nccl_timeout in (None, timedelta(minutes=10))
    left = leave_a_file_behind(cfg)
    taken = free_port()
    stranger = Child(meet, 0, Attempt(2, f"tcp://{HERE}:{taken}", cfg.patience_s, job="B"))
    while not is_taken(taken):
        time.sleep(0.01)
    mistakes = [
        *a_rank_is_missing(cfg.patience_s),
        *a_wrong_address(taken, cfg.patience_s),
        *old_keys(left, cfg.patience_s),
        *no_gpu(cfg.patience_s),
    ]

    os.environ.pop("MASTER_ADDR", None)
    os.environ["MASTER_PORT"] = str(free_port())
    seconds = show_mistakes(mistakes, cfg)
    assert stranger.outcome(cfg.patience_s)[0] == "met B0, A1"

    os.environ["MASTER_ADDR"] = HERE
    left.unlink()
    show_cures(mistakes, cfg)
    shutil.rmtree(left.parent)

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # alone, to record
    record_results("lesson_02_faults", {"seconds": seconds})


if __name__ == "__main__":
    run(main, Config())
