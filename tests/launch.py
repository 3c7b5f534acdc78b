"""Launches of scripts by forks of processes that have torch already: what torchrun does, without its imports.

``run_job(job)`` does what ``torchrun SCRIPT ARGUMENTS`` does: a store and ``ranks`` processes in torchrun's
environment. When one rank fails, the others are ended, and its exit code is that of the job. A job that runs
out of time is ended. No process of a job outlives it, nor pytest.

The forks are made by the standard library's ``multiprocessing.forkserver``. There are two servers, and ranks
are forks of them in turn: a rank and its neighbour hash strings differently and keep their objects at
different addresses, as with torchrun.

Not for what a process reads when torch is imported (variables such as OMP_NUM_THREADS or TORCH_LOGS), nor for
measuring memory or start-up, nor for the interpreter's shutdown, nor for what torchrun itself does, such as
restarts: launch these for real.
"""

import atexit
import os
import signal
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import context, forkserver
from multiprocessing import process as processes
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import psutil

from tests.helpers import ROOT, Done, environment, python, torchrun
from tests.preloaded import MAIN_PROCESS, PATH, die_with_parent

LIMIT_S = 300.0  # bounds a hang; nothing is measured with it
LOOK_S = 0.1  # torchrun's agent looks so often: what ranks say at the same time, all of them can say
GRACE_S = 5.0  # between SIGTERM and SIGKILL
TIMED_OUT = 124
STARTED = "started"
LINUX = sys.platform == "linux"


@dataclass(frozen=True)
class Job:
    """One launch. With ``ranks=0`` the script is no rank: as ``python SCRIPT`` starts it."""

    script: Path
    arguments: Sequence[str | Path] = ()
    ranks: int = 2
    environment: dict[str, str] = field(default_factory=dict)
    folder: Path = ROOT
    limit_s: float = LIMIT_S


class Servers:
    """The processes that fork. They die with the thread that starts them: let that be the main thread."""

    COUNT = 2

    def __init__(self) -> None:
        self.all: list[forkserver.ForkServer] = []

    def start(self) -> None:
        """Start those that do not run, and wait until they have imported torch."""
        if not self.all:
            self.all = [forkserver.ForkServer() for _ in range(self.COUNT)]
        with patch.dict(os.environ, environment(), clear=True):
            for server in self.all:
                server.set_forkserver_preload(["tests.preloaded"])
                server.ensure_running()

    def fork(self, index: int, function, *arguments) -> context.ForkServerProcess:
        """Call ``function(*arguments)`` in a fork of server ``index``, counted round and round."""
        server = self.all[index % self.COUNT]
        child = context.ForkServerProcess(target=function, args=arguments, daemon=True)
        with patch.object(forkserver, "connect_to_new_process", server.connect_to_new_process):
            child.start()
        return child

    def end_strays(self, alive: Iterable[int]) -> None:
        """End what processes left behind that have ended: the servers inherit it."""
        kept = set(alive)
        for server in self.all:
            for child in psutil.Process(server._forkserver_pid).children():
                if child.pid not in kept:
                    with suppress(psutil.NoSuchProcess):
                        child.kill()


SERVERS = Servers()


def run_job(job: Job) -> Done:
    """How the job ended: exit code and what all its ranks printed."""
    if not LINUX:
        return run_cold(job)
    SERVERS.start()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output.txt"
        output.touch()
        children = {}
        store = None
        port = 0
        try:
            if job.ranks:
                receiver, sender = Pipe(duplex=False)
                store = SERVERS.fork(0, serve_store, sender)
                sender.close()
                port = receiver.recv()
            for rank in range(max(1, job.ranks)):
                variables = variables_of(job, rank, port, output)
                children[rank] = SERVERS.fork(rank, be_python, job, variables, output)
            code = wait_for(job, children, output)
        finally:
            end([*children.values(), *([store] if store else [])], signal.SIGKILL)
            SERVERS.end_strays([])
        text = output.read_bytes().decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return Done([str(job.script), *map(str, job.arguments)], code, text)


def wait_for(job: Job, children: dict[int, context.ForkServerProcess], output: Path) -> int:
    """The exit code of the first rank that failed. As soon as one fails, the others are asked to end."""
    alive = dict(children)
    code = 0
    next_signal = signal.SIGTERM
    signal_at = time.monotonic() + job.limit_s
    while alive:
        wait([child.sentinel for child in alive.values()], max(0.0, signal_at - time.monotonic()))
        for rank, child in list(alive.items()):
            if child.exitcode is None:
                continue
            del alive[rank]
            end([child], signal.SIGKILL)
            if child.exitcode and not code:
                code = child.exitcode
                signal_at = min(signal_at, time.monotonic() + LOOK_S)
        if not alive or time.monotonic() < signal_at:
            continue
        if not code:
            code = TIMED_OUT
            names = ", ".join(f"rank {rank}" for rank in alive)
            with output.open("a", encoding="utf-8") as file:
                file.write(f"ended after {job.limit_s:.0f} s: still at work: {names}\n")
        end(alive.values(), next_signal)
        next_signal = signal.SIGKILL
        signal_at = time.monotonic() + GRACE_S
    return code


def end(children: Iterable[context.ForkServerProcess], number: int) -> None:
    """Send a signal to processes and to what they started in their sessions."""
    for child in children:
        for send in (os.killpg, os.kill):  # it may not lead a group yet
            with suppress(ProcessLookupError):
                if send is os.killpg or child.exitcode is None:
                    send(child.pid, number)
        if number == signal.SIGKILL:
            child.join()


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


def serve_store(sender: Connection) -> None:
    """The store of a job in a process of its own, as torchrun's agent is."""
    begin(Path(os.devnull))
    store = sys.modules["torch.distributed"].TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    sender.send(store.port)
    while store:
        signal.pause()


def be_python(job: Job, variables: dict[str, str], output: Path) -> None:
    """Be ``python SCRIPT ARGUMENTS``: the same streams, folders, arguments, environment and module."""
    begin(output)
    forget_multiprocessing()
    os.chdir(job.folder)
    ours = paths_of(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    installed = [path for path in PATH if path not in ("", *ours)]
    found = [str(job.script.parent), *paths_of(variables), *installed]
    sys.path[:] = [*found, *(path for path in paths_of_pth_files() if path not in found)]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("shared", "tests")]:
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
    leave(code)


def leave(code: int) -> None:
    """End as Python ends, but for taking torch apart: that costs each rank two seconds of a processor."""
    threading._shutdown()  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def code_of(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def begin(output: Path) -> None:
    """Lead a session, read nothing, write to the end of ``output``."""
    os.setsid()
    die_with_parent()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for number in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):  # torchrun starts ranks with `python -u`
        stream.reconfigure(write_through=True)


def forget_multiprocessing() -> None:
    """Look like a process that nobody forked: free to have children and to choose how to start them."""
    processes._current_process = MAIN_PROCESS
    processes._parent_process = None
    context._default_context._actual_context = None


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


def run_cold(job: Job) -> Done:
    """The real thing, for systems whose processes cannot be forked safely."""
    if not job.ranks:
        return python(job.script, *job.arguments, cwd=job.folder, **job.environment)
    return torchrun(job.script, *job.arguments, ranks=job.ranks, cwd=job.folder, **job.environment)
