"""Launches of scripts by forks of processes that have torch already: what torchrun does, without its imports.

``run_job(job)`` does what ``torchrun SCRIPT ARGUMENTS`` does: a store and ``ranks`` processes in torchrun's
environment. When one rank fails, the others are ended, and its exit code is that of the job. A job that runs
out of time is ended. No process of a job outlives it, nor pytest.

Two servers (``tests/preloaded.py``) fork, and ranks are forks of them in turn: a rank and its neighbour hash
strings differently and keep their objects at different addresses, as with torchrun.

Not for what a process reads when torch is imported (variables such as OMP_NUM_THREADS or TORCH_LOGS), nor for
measuring memory or start-up, nor for the interpreter's shutdown, nor for what torchrun itself does, such as
restarts: launch these for real.
"""

import ctypes
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from types import ModuleType

import psutil

from tests.helpers import LABS, ROOT, Done, environment, scratch

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
PATH = list(sys.path)
SERVERS = 2
LIMIT_S = 300.0  # bounds a hang; nothing is measured with it
LOOK_S = 0.1  # torchrun's agent looks so often: what ranks say at the same time, all of them can say
GRACE_S = 5.0  # between SIGTERM and SIGKILL
TIMED_OUT = 124


@dataclass(frozen=True)
class Job:
    """One launch. With ``ranks=0`` the script is no rank: as ``python SCRIPT`` starts it."""

    script: Path
    arguments: Sequence[str | Path] = ()
    ranks: int = 2
    environment: dict[str, str] = field(default_factory=dict)
    folder: Path = ROOT
    limit_s: float = LIMIT_S


@cache
def servers() -> list[str]:
    """Start the servers; return their addresses when both have imported torch.

    They die with the thread that starts them: let that be the main thread.
    """
    folder = tempfile.mkdtemp(dir=scratch().name)
    addresses = [f"{folder}/{number}" for number in range(SERVERS)]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.preloaded", address],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        for address in addresses
    ]
    for server in started:
        assert server.stdout.readline() == b"ready\n"
    return addresses


class Child:
    """A fork of server ``index``, counted round and round: it calls ``function(connection, *arguments)``."""

    def __init__(self, index: int, function: Callable[..., int], *arguments) -> None:
        self.connection = Client(servers()[index % SERVERS])
        self.connection.send((function, arguments))
        self.pid = self.connection.recv()
        self.exitcode: int | None = None

    def join(self) -> int:
        """Wait for its end; return its exit code."""
        if self.exitcode is None:
            self.exitcode = self.connection.recv()
        return self.exitcode

    def send_signal(self, number: int) -> None:
        """Signal it and what it started in its session."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)
        if self.exitcode is None:  # it may not lead a group yet
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def end(self) -> None:
        """End it and all that it has left behind."""
        self.send_signal(signal.SIGKILL)
        self.join()
        self.connection.send("the job has ended")
        with suppress(EOFError):
            self.connection.recv()
        self.connection.close()


def serve(address: str) -> int:
    """Be a server. Only a fork that was asked for returns, with its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a keeper ended
    listener = Listener(address, backlog=8)
    print("ready", flush=True)
    while True:
        connection = listener.accept()
        if os.fork() == 0:
            listener.close()
            return keep(connection)
        connection.close()


def keep(connection: Connection) -> int:
    """Fork a ``Child``, tell its number and exit code, and in the end kill what it has left behind."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    die_with_parent()
    adopt_orphans()
    function, arguments = connection.recv()
    pid = os.fork()
    if pid == 0:
        die_with_parent()
        connection.send(os.getpid())
        return function(connection, *arguments)
    _, status = os.waitpid(pid, 0)
    connection.send(os.waitstatus_to_exitcode(status))
    with suppress(EOFError):
        connection.recv()  # until the job has ended
    for orphan in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            orphan.kill()
    os._exit(0)


def run_job(job: Job) -> Done:
    """How the job ended: exit code and what all its ranks printed."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output.txt"
        output.touch()
        ranks: dict[int, Child] = {}
        stores = []
        port = 0
        try:
            if job.ranks:
                stores.append(Child(0, serve_store))
                port = stores[0].connection.recv()
            for rank in range(max(1, job.ranks)):
                variables = variables_of(job, rank, port, output)
                ranks[rank] = Child(rank, be_python, job, variables, output)
            code = wait_for(job, ranks, output)
        finally:
            for child in (*ranks.values(), *stores):
                child.end()
        text = output.read_bytes().decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return Done([str(job.script), *map(str, job.arguments)], code, text)


def wait_for(job: Job, ranks: dict[int, Child], output: Path) -> int:
    """The exit code of the first rank that failed. As soon as one fails, the others are asked to end."""
    alive = {child.connection: rank for rank, child in ranks.items()}
    code = 0
    next_signal = signal.SIGTERM
    signal_at = time.monotonic() + job.limit_s
    while alive:
        for connection in wait(list(alive), max(0.0, signal_at - time.monotonic())):
            child = ranks[alive.pop(connection)]
            ended_with = child.join()
            child.send_signal(signal.SIGKILL)
            if ended_with and not code:
                code = ended_with
                signal_at = min(signal_at, time.monotonic() + LOOK_S)
        if not alive or time.monotonic() < signal_at:
            continue
        if not code:
            code = TIMED_OUT
            names = ", ".join(f"rank {rank}" for rank in alive.values())
            with output.open("a", encoding="utf-8") as file:
                file.write(f"ended after {job.limit_s:.0f} s: still at work: {names}\n")
        for rank in alive.values():
            ranks[rank].send_signal(next_signal)
        next_signal = signal.SIGKILL
        signal_at = time.monotonic() + GRACE_S
    return code


def variables_of(job: Job, rank: int, port: int, output: Path) -> dict[str, str]:
    """What torchrun sets (torch/distributed/elastic/agent/server/local_elastic_agent.py), for one node."""
    if not job.ranks:
        return environment(**job.environment)
    size = str(job.ranks)
    return environment(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        ROLE_RANK=str(rank),
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
        TORCHELASTIC_ERROR_FILE=str(output.with_suffix(f".{rank}.json")),
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCH_NCCL_ASYNC_ERROR_HANDLING="1",
        **job.environment,
    )


def serve_store(connection: Connection) -> int:
    """The store of a job in a process of its own, as torchrun's agent is. Tells its port."""
    begin(Path(os.devnull))
    store = sys.modules["torch.distributed"].TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    connection.send(store.port)
    while store:
        signal.pause()
    return 0


def be_python(connection: Connection, job: Job, variables: dict[str, str], output: Path) -> int:
    """Be ``python SCRIPT ARGUMENTS``: the same streams, folders, arguments, environment and module."""
    connection.close()
    begin(output)
    os.chdir(job.folder)
    ours = paths_of(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    installed = [path for path in PATH if path not in ("", str(LABS), *ours)]
    found = [str(job.script.parent), *paths_of(variables), *installed]
    sys.path[:] = [*found, *(path for path in paths_of_pth_files() if path not in found)]
    for name in [
        name
        for name in sys.modules
        if name.partition(".")[0] in ("shared", "tests") or name.startswith(("lab_", "lesson_"))
    ]:
        del sys.modules[name]  # the job finds them where its PYTHONPATH says, or not at all
    sys.argv = [str(job.script), *map(str, job.arguments)]
    sys.modules["numpy"].random.seed()  # a process of its own would have drawn a seed of its own
    module = ModuleType("__main__")
    module.__file__ = str(job.script)
    sys.modules["__main__"] = module
    code = 0
    try:
        exec(compile(job.script.read_bytes(), job.script, "exec", dont_inherit=True), module.__dict__)
    except SystemExit as error:
        code = code_of(error)
    except BaseException as error:
        code = 1
        traceback.print_exception(type(error), error, error.__traceback__.tb_next)
    return code


def code_of(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def begin(output: Path) -> None:
    """Lead a session, read nothing, write to the end of ``output``."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for number in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):  # torchrun starts ranks with `python -u`
        stream.reconfigure(write_through=True)


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """What a child of this process leaves behind becomes its child, too."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def paths_of_pth_files() -> list[str]:
    """Folders that installed packages put on Python's path, as editable ones do."""
    files = sorted(Path(sysconfig.get_path("purelib")).glob("*.pth"))
    lines = "".join(file.read_text(encoding="utf-8") + "\n" for file in files).splitlines()
    return [line for line in lines if line and Path(line).is_dir()]


def paths_of(variables) -> list[str]:
    """What PYTHONPATH puts in front of the installed packages."""
    return [path for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path]


def warm_torchrun(
    script: Path, *arguments: str | Path, ranks: int = 2, cwd: Path = ROOT, **environment: str
) -> Done:
    """``tests.helpers.torchrun`` by forks: for tests of what a script does, not of how it is launched."""
    return run_job(Job(script, arguments, ranks, environment, cwd))
