"""A process that has imported torch once and forks into the ranks of many jobs. Driven by ``tests/warm.py``.

Linux only. Requests come in as lines of JSON on stdin, reports leave as lines of JSON on stdout:

    {"do": "serve", "job": 3}                         -> {"job": 3, "port": 41234}
    {"do": "start", "job": 3, "ranks": {"0": {...}}, ...} -> {"job": 3, "rank": "0", "code": 0} when it ends
    {"do": "signal", "job": 3, "signal": 15}          (to all processes of the job, its store too)

It has one thread at every fork, so no lock is ever copied while somebody holds it: the threads of a job live
in the job's own processes. It dies with its driver, its ranks die with it, and what a rank leaves behind is
ended.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType

PRELOADED = ("torch", "torch._dynamo", "torchvision", "sklearn.datasets", "psutil")
HERE = "127.0.0.1"
PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
REQUESTS, REPORTS, ERRORS = 0, 1, 2
STORE = "store"


class Zygote:
    """``processes``: {process id: (job, rank)} of the ranks and stores that run; each leads a session."""

    def __init__(self) -> None:
        self.processes: dict[int, tuple[int, str]] = {}
        self.watched: dict[int, int] = {}  # {pidfd: process id}
        self.unread = b""

    def serve_forever(self) -> dict:
        """Fork as requested. Returns in a rank only, with what this rank is to run."""
        poll = select.poll()
        poll.register(REQUESTS, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == REQUESTS:
                    for request in self.requests():
                        work = self.handle(request, poll)
                        if work is not None:
                            return work
                else:
                    poll.unregister(descriptor)
                    os.close(descriptor)
                    del self.watched[descriptor]
                    self.reap()

    def requests(self) -> list[dict]:
        """Those that have come in completely. Without a driver this process ends."""
        received = os.read(REQUESTS, 1 << 16)
        if not received:
            self.end_everything()
        *lines, self.unread = (self.unread + received).split(b"\n")
        return [json.loads(line) for line in lines]

    def handle(self, request: dict, poll: select.poll) -> dict | None:
        if request["do"] == "signal":
            self.signal(request["job"], request["signal"])
        elif request["do"] == "serve":
            self.fork_store(request["job"], poll)
        else:
            for rank, environment in request["ranks"].items():
                if self.fork(request["job"], rank, poll) == 0:
                    return {**request, "environment": environment}
        return None

    def fork(self, job: int, name: str, poll: select.poll) -> int:
        threads = len(list(Path("/proc/self/task").iterdir()))
        if threads > 1:
            raise RuntimeError(f"a process of {threads} threads must not fork")
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            die_with(parent)
            for descriptor in self.watched:
                os.close(descriptor)
            return 0
        self.processes[pid] = (job, name)
        descriptor = os.pidfd_open(pid)
        self.watched[descriptor] = pid
        poll.register(descriptor, select.POLLIN)
        return pid

    def fork_store(self, job: int, poll: select.poll) -> None:
        """The store of a job in a process of its own, as torchrun's agent is; we only choose the port."""
        with socket.create_server((HERE, 0)) as server:
            port = server.getsockname()[1]
            if self.fork(job, STORE, poll) == 0:
                redirect(os.devnull)
                store = sys.modules["torch.distributed"].TCPStore(
                    HERE, port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach()
                )
                while store:
                    signal.pause()
        report(job=job, port=port)

    def reap(self) -> None:
        """Report the ranks that have ended, and end what they left behind."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                if pid in self.processes:
                    end_group(pid, signal.SIGKILL)
                    job, name = self.processes.pop(pid)
                    report(job=job, rank=name, code=os.waitstatus_to_exitcode(status))
        self.end_strays()

    def end_strays(self) -> None:
        """End processes that were handed to us because their parents died and whose rank has ended, too."""
        for child in sys.modules["psutil"].Process().children():
            with suppress(ProcessLookupError):
                if child.pid not in self.processes and os.getsid(child.pid) not in self.processes:
                    os.kill(child.pid, signal.SIGKILL)

    def signal(self, job: int, number: int) -> None:
        for pid, (owner, _) in self.processes.items():
            if owner == job:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)  # it may not lead a group yet
                end_group(pid, number)

    def end_everything(self) -> None:
        for pid in self.processes:
            end_group(pid, signal.SIGKILL)
        os._exit(0)


def end_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, number)


def report(**values) -> None:
    os.write(REPORTS, (json.dumps(values) + "\n").encode())


def die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it has died before we asked


def redirect(output: str) -> None:
    """Have this process write to the end of ``output`` and read nothing."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(nothing, REQUESTS)
    os.dup2(written, REPORTS)
    os.dup2(written, ERRORS)
    os.close(nothing)
    os.close(written)


def paths_of(environment: Mapping[str, str]) -> list[str]:
    """What PYTHONPATH puts in front of the installed packages."""
    return [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]


def become(work: dict) -> None:
    """Be ``python SCRIPT ARGUMENTS``: the same streams, folders, arguments, environment and module."""
    script = Path(work["script"])
    redirect(work["output"])
    os.chdir(work["folder"])
    ours = paths_of(os.environ)
    os.environ.clear()
    os.environ.update(work["environment"])
    installed = [path for path in sys.path[1:] if path not in ours]
    sys.argv = [str(script), *work["arguments"]]
    sys.path[:] = [str(script.parent), *paths_of(os.environ), *installed]
    sys.modules["numpy"].random.seed()  # a process of its own would have drawn a seed of its own
    module = ModuleType("__main__")
    module.__file__ = str(script)
    sys.modules["__main__"] = module
    exec(compile(script.read_bytes(), script, "exec", dont_inherit=True), module.__dict__)


def main() -> None:
    die_with(int(sys.argv[1]))
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # the collector of a rank need not look at all of torch
    atexit.register(gc.unfreeze)  # at the end it must, or nanobind reports leaks
    report(ready=True)
    become(Zygote().serve_forever())


if __name__ == "__main__":
    main()
