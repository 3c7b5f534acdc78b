"""A process that starts others and leaves none of them behind, however its owner ends.

Daemons leave their parents: they fork twice, begin sessions of their own, and outlive who started them. The
keeper is their *subreaper* (prctl(2)): a process below it whose parent ends becomes the keeper's own child,
so all of them can be found, and ended. The keeper reads from a pipe. When the owner closes it, or dies of
whatever cause, the keeper ends all that is below it, removes the folder, and leaves. Linux only.
"""

import contextlib
import ctypes
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from shared.runtime.errors import CourseError

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
LONGEST_WAIT_S = 60.0


class Keeper:
    """The owner's end of it. ``folder`` is removed at the end."""

    def __init__(self, folder: Path) -> None:
        self._process: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, __file__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the owner alone
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders = self._process.stdin
        self._answers = self._process.stdout

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, command: list[str], output: Path, environment: dict[str, str]) -> int:
        """Start a command that writes to ``output``; return its process id."""
        self._write({"command": command, "output": str(output), "environment": environment})
        answer = self._answers.readline()
        if not answer.startswith("pid "):
            raise CourseError(f"{command[0]} could not be started: {answer.strip()}")
        return int(answer.removeprefix("pid "))

    def _write(self, message: dict) -> None:
        self._orders.write(json.dumps(message) + "\n")
        self._orders.flush()

    def below(self) -> list[psutil.Process]:
        """All processes that were started, by whomever, and still run."""
        try:
            processes = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [process for process in processes if _runs(process)]

    def close(self) -> None:
        """End all, and wait until that is done."""
        if not self._orders.closed:
            self._orders.close()
        self._process.wait(LONGEST_WAIT_S)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def reap(number: int, frame: object) -> None:
    """Let processes vanish that have ended: some wait for that."""
    with contextlib.suppress(ChildProcessError):  # there is none
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def end_all() -> None:
    """Kill until nothing is left: what is killed may have started another one just before."""
    while True:
        left = psutil.Process().children(recursive=True)
        if not left:
            return
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=0.1)
        reap(signal.SIGCHLD, None)


def keep(folder: Path) -> None:
    """The keeper's own work, until its pipe is closed."""
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1) != 0:
        raise OSError("this system has no subreapers")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, reap)
    try:
        for line in sys.stdin:
            message = json.loads(line)
            try:
                pid = start(message)
            except OSError as error:
                print(error, flush=True)
            else:
                print(f"pid {pid}", flush=True)
    finally:
        end_all()
        shutil.rmtree(folder, ignore_errors=True)


def start(message: dict) -> int:
    """Start what the owner asks for. Signals that the keeper ignores have their usual meaning there."""
    if shutil.which(message["command"][0]) is None:  # a folder on PATH that may not be read hides it else
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), message["command"][0])
    with Path(message["output"]).open("ab") as output:
        actions = [(os.POSIX_SPAWN_DUP2, output.fileno(), 1), (os.POSIX_SPAWN_DUP2, output.fileno(), 2)]
        nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        return os.posix_spawnp(
            message["command"][0],
            message["command"],
            message["environment"],
            file_actions=[nothing, *actions],
            setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
        )


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
