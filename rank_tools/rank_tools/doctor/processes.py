"""Processes by their numbers: who descends from whom, and who lives. By /proc, elsewhere by ``ps``."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
PROC = Path("/proc")
LONGEST_COMMAND = 80


def adopt_orphans() -> None:
    """On Linux, processes whose parent dies become ours, so that they can be found and ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_with_us() -> None:
    """In a child, on Linux: get SIGTERM when the doctor dies; torchrun then ends its ranks."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def parents() -> dict[int, int]:
    """{process: its parent} of all processes that are not dead."""
    if PROC.joinpath("self/stat").exists():
        parent_of = {}
        for path in PROC.glob("[0-9]*/stat"):
            with suppress(OSError, ValueError, IndexError):
                state, parent, *_ = path.read_text(errors="replace").rpartition(")")[2].split()
                if state != "Z":
                    parent_of[int(path.parent.name)] = int(parent)
        return parent_of
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=False
    )
    rows = [line.split() for line in listing.stdout.splitlines()]
    return {int(row[0]): int(row[1]) for row in rows if len(row) > 2 and not row[2].startswith("Z")}


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``, itself left out."""
    children: dict[int, list[int]] = {}
    for child, parent in parents().items():
        children.setdefault(parent, []).append(child)
    below = []
    todo = [pid]
    while todo:
        new = children.get(todo.pop(), [])
        below += new
        todo += new
    return below


def ancestors(pid: int, parent_of: dict[int, int]) -> list[int]:
    """Its parent, that one's parent, and so on."""
    above: list[int] = []
    while (pid := parent_of.get(pid, 0)) and pid not in above:
        above.append(pid)
    return above


def command_of(pid: int) -> str:
    """Its command line, shortened."""
    with suppress(OSError):
        words = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
        return " ".join(word for word in words if word)[:LONGEST_COMMAND]
    return ""


def exit_code_of(pid: int) -> int | None:
    """That of a process which is dead and whose parent has not asked for it yet; a signal is negative."""
    with suppress(OSError, IndexError, ValueError):
        fields = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        if fields[0] == "Z":
            return os.waitstatus_to_exitcode(int(fields[49]))
    return None


def moved_of(pid: int) -> int:
    """Bytes that it has read and written, sockets left out; 0 where we may not look."""
    with suppress(OSError, ValueError, KeyError):
        fields = dict(line.split(":") for line in (PROC / str(pid) / "io").read_text().splitlines())
        return sum(int(fields[name]) for name in ("rchar", "wchar", "read_bytes"))
    return 0


def catches(pid: int, number: int) -> bool:
    """Whether it has a handler for a signal, which would end it otherwise."""
    with suppress(OSError, ValueError):
        for line in (PROC / str(pid) / "status").read_text(errors="replace").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def is_alive(pid: int) -> bool:
    return pid in parents()


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped it, as Ctrl-Z does."""
    with suppress(OSError, IndexError):
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
        return text.rpartition(")")[2].split()[0] in ("T", "t")
    return False


def cpu_s_of(pid: int) -> float:
    """Seconds of processor time that it has used; 0 where there is no /proc."""
    with suppress(OSError, ValueError):
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
        user, system = text.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return 0.0


def variables_of(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty if we may not read it."""
    with suppress(OSError):
        text = (PROC / str(pid) / "environ").read_bytes().decode(errors="replace")
        return dict(part.split("=", 1) for part in text.split("\0") if "=" in part)
    return {}


def end(pids: list[int], patience_s: float) -> None:
    """Ask the processes to end, wait, then end them. They are those that we were given, by number."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        give_up = time.monotonic() + patience_s
        while time.monotonic() < give_up:
            for pid in pids:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)  # those that became ours
            alive = parents()
            pids = [pid for pid in pids if pid in alive]
            if not pids:
                return
            time.sleep(0.05)
