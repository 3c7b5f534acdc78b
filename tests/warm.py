"""Launches of scripts by forks of a process that has torch already: what torchrun does, without its imports.

``run_jobs(jobs)`` does for each job what ``torchrun SCRIPT ARGUMENTS`` does: a store and ``ranks`` processes
in torchrun's environment. When one rank fails, the others are ended, and its exit code is that of the job. A
job that runs out of time is ended. No process of a job outlives it.

It is as strict as torchrun in what ranks must not share by accident: they are forks of two processes in turn,
so that a rank and its neighbour hash strings differently and keep their objects at different addresses.

Not for what a process reads when torch is imported (variables such as OMP_NUM_THREADS or TORCH_LOGS), nor for
measuring memory or start-up, nor for what torchrun itself does, such as restarts: launch these for real.
"""

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.helpers import ROOT, SCRIPTS, Done, environment, python, torchrun

ZYGOTES = 2
AT_ONCE = 2  # jobs of one call that run side by side
LIMIT_S = 300.0  # bounds a hang; nothing is measured with it
LOOK_S = 0.1  # torchrun's agent looks so often: what ranks say at the same time, all of them can say
GRACE_S = 5.0  # between SIGTERM and SIGKILL
TIMED_OUT = 124
LINUX = sys.platform == "linux"


class ZygoteDiedError(RuntimeError):
    """The process that forks has ended; the next call starts another one."""


@dataclass(frozen=True)
class Job:
    """One launch. With ``ranks=0`` the script is no rank: as ``python SCRIPT`` starts it."""

    script: Path
    arguments: Sequence[str | Path] = ()
    ranks: int = 2
    environment: dict[str, str] = field(default_factory=dict)
    folder: Path = ROOT
    limit_s: float = LIMIT_S
    keeps_returns: bool = False  # a carriage return, as of a progress bar, stays one instead of a new line

    @property
    def names(self) -> list[str]:
        return [str(rank) for rank in range(max(1, self.ranks))]


class Running:
    """A job that is under way: which ranks are, how the first one failed, and when patience ends."""

    def __init__(self, job: Job, number: int, output: Path) -> None:
        self.job = job
        self.number = number
        self.output = output
        self.alive = set(job.names)
        self.code = 0
        self.store_is_alive = False
        self.next_signal = signal.SIGTERM
        self.signal_at = time.monotonic() + job.limit_s

    def ended(self, rank: str, code: int) -> None:
        if rank == "store":
            self.store_is_alive = False
            return
        self.alive.discard(rank)
        if code and not self.code:
            self.code = code
            self.signal_at = min(self.signal_at, time.monotonic() + LOOK_S)

    def is_over(self) -> bool:
        return not self.alive and not self.store_is_alive

    def done(self) -> Done:
        said = self.output.read_bytes().decode("utf-8", "replace") if self.output.exists() else ""
        if not self.job.keeps_returns:
            said = said.replace("\r\n", "\n").replace("\r", "\n")
        return Done([str(self.job.script), *map(str, self.job.arguments)], self.code, said)


class WarmLaunch:
    """The processes that fork, and the jobs that run in their forks."""

    def __init__(self) -> None:
        self.unread = [b""] * ZYGOTES
        self.zygotes = [
            subprocess.Popen(
                [sys.executable, "-u", str(SCRIPTS / "zygote.py"), str(os.getpid())],
                cwd=ROOT,
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the driver
                bufsize=0,
            )
            for _ in range(ZYGOTES)
        ]
        self.started = 0
        for index in range(ZYGOTES):
            self.reports(index)  # the first one says that it has imported torch

    def close(self) -> None:
        for zygote in self.zygotes:
            zygote.stdin.close()  # it ends what it started, then itself
        for zygote in self.zygotes:
            zygote.wait()
            zygote.stdout.close()

    def run(self, jobs: Sequence[Job], at_once: int) -> list[Done]:
        """How each job ended, in their order."""
        results: dict[int, Done] = {}
        running: dict[int, Running] = {}
        waiting = list(enumerate(jobs))
        places: dict[int, int] = {}
        with tempfile.TemporaryDirectory() as folder:
            while waiting or running:
                while waiting and len(running) < at_once:
                    place, job = waiting.pop(0)
                    one = self.start(job, Path(folder))
                    running[one.number] = one
                    places[one.number] = place
                self.listen(running)
                for one in list(running.values()):
                    self.look_after(one)
                    if one.is_over():
                        results[places[one.number]] = one.done()
                        del running[one.number]
        return [results[place] for place in range(len(jobs))]

    def start(self, job: Job, folder: Path) -> Running:
        self.started += 1
        one = Running(job, self.started, folder / f"{self.started}.txt")
        if job.ranks:
            self.ask(0, do="serve", job=one.number)
            one.store_is_alive = True
        else:
            self.start_ranks(one, port=0)
        return one

    def start_ranks(self, one: Running, port: int) -> None:
        job = one.job
        common = {
            "do": "start",
            "job": one.number,
            "script": str(job.script),
            "arguments": [str(argument) for argument in job.arguments],
            "folder": str(job.folder),
            "output": str(one.output),
        }
        for index in range(ZYGOTES):
            names = job.names[index::ZYGOTES]
            self.ask(index, ranks={name: environment_of(one, name, port) for name in names}, **common)

    def ask(self, index: int, **request) -> None:
        try:
            self.zygotes[index].stdin.write((json.dumps(request) + "\n").encode())
        except BrokenPipeError:
            raise ZygoteDiedError(f"zygote {index} has ended before its time") from None

    def listen(self, running: dict[int, Running]) -> None:
        """Wait for reports of ranks, or until it is time to look after a job."""
        patience = max(0.0, min(one.signal_at for one in running.values()) - time.monotonic())
        pipes = [zygote.stdout for zygote in self.zygotes]
        for pipe in select.select(pipes, [], [], patience)[0]:
            for report in self.reports(pipes.index(pipe)):
                one = running[report["job"]]
                if "port" in report:
                    self.start_ranks(one, report["port"])
                else:
                    one.ended(report["rank"], report["code"])

    def reports(self, index: int) -> list[dict]:
        received = os.read(self.zygotes[index].stdout.fileno(), 1 << 16)
        if not received:
            raise ZygoteDiedError(f"zygote {index} has ended before its time")
        *lines, self.unread[index] = (self.unread[index] + received).split(b"\n")
        return [json.loads(line) for line in lines]

    def look_after(self, one: Running) -> None:
        """End a job in which a rank has failed or that ran out of time; its store when no rank is left."""
        if not one.alive:
            if one.store_is_alive:
                self.signal(one, signal.SIGKILL)
            one.signal_at = time.monotonic() + GRACE_S
            return
        if time.monotonic() < one.signal_at:
            return
        if not one.code:
            one.code = TIMED_OUT
            ranks = ", ".join(f"rank {name}" for name in sorted(one.alive))
            with one.output.open("a", encoding="utf-8") as file:
                file.write(f"ended after {one.job.limit_s:.0f} s: still at work: {ranks}\n")
        self.signal(one, one.next_signal)
        one.next_signal = signal.SIGKILL
        one.signal_at = time.monotonic() + GRACE_S

    def signal(self, one: Running, number: int) -> None:
        for index in range(ZYGOTES):
            self.ask(index, do="signal", job=one.number, signal=int(number))


def environment_of(one: Running, rank: str, port: int) -> dict[str, str]:
    """What torchrun sets (torch/distributed/elastic/agent/server/local_elastic_agent.py), for one node."""
    job = one.job
    if not job.ranks:
        return environment(**job.environment)
    size = str(job.ranks)
    return environment(
        RANK=rank,
        LOCAL_RANK=rank,
        ROLE_RANK=rank,
        WORLD_SIZE=size,
        LOCAL_WORLD_SIZE=size,
        ROLE_WORLD_SIZE=size,
        GROUP_RANK="0",
        GROUP_WORLD_SIZE="1",
        ROLE_NAME="default",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_MAX_RESTARTS="0",
        TORCHELASTIC_RUN_ID="warm",
        TORCHELASTIC_SIGNALS_TO_HANDLE="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        TORCHELASTIC_ERROR_FILE=str(one.output.with_suffix(f".{rank}.json")),
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCH_NCCL_ASYNC_ERROR_HANDLING="1",
        **job.environment,
    )


launches: list[WarmLaunch] = []


def close_launches() -> None:
    while launches:
        launches.pop().close()


def run_jobs(jobs: Iterable[Job], at_once: int = AT_ONCE) -> list[Done]:
    """How each job ended, in their order: exit code and what all its ranks printed."""
    jobs = list(jobs)
    if not LINUX:
        return [run_cold(job) for job in jobs]
    if not launches:
        launches.append(WarmLaunch())
        atexit.register(close_launches)
    try:
        return launches[0].run(jobs, at_once)
    except BaseException:
        close_launches()  # whatever went wrong, the next call begins anew
        raise


def run_job(job: Job) -> Done:
    return run_jobs([job])[0]


def warm_torchrun(
    script: Path, *arguments: str | Path, ranks: int = 2, cwd: Path = ROOT, **environment: str
) -> Done:
    """``tests.helpers.torchrun`` by forks: for tests of what a script does, not of how it is launched."""
    return run_job(Job(script, arguments, ranks, environment, cwd))


def selected(request: pytest.FixtureRequest, name: str) -> list:
    """What the parameter ``name`` is in the tests of this module that are to run, each value once."""
    values = {}
    for item in request.session.items:
        here = getattr(item, "module", None) is request.module  # a notebook is of no module
        if here and hasattr(item, "callspec") and name in item.callspec.params:
            values[item.callspec.params[name]] = True
    return list(values)


def run_cold(job: Job) -> Done:
    """The real thing, for systems whose processes cannot be forked safely."""
    if not job.ranks:
        return python(job.script, *job.arguments, cwd=job.folder, **job.environment)
    return torchrun(job.script, *job.arguments, ranks=job.ranks, cwd=job.folder, **job.environment)
