"""Processes found by what they were started with; a lab whose ranks sleep. Linux only."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.helpers import HANG_S, ROOT, SCRIPTS, environment, torchrun_command

RANKS = 2


class SleepingLab:
    """Its processes bear the name of ``folder`` in their command lines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def command(self, *arguments: str) -> list[str]:
        return torchrun_command(SCRIPTS / "sleeps.py", RANKS, self.folder, *arguments)

    def started(self) -> bool:
        return {path.name for path in self.folder.iterdir()} == {str(rank) for rank in range(RANKS)}

    def processes(self) -> list[int]:
        """The launcher and its workers, whatever their parents are by now."""
        return [pid for pid, words in processes_with(str(self.folder)).items() if str(self.folder) in words]

    def wait_until_started(self) -> None:
        wait_until(self.started, "the ranks run")

    def wait_until_gone(self) -> None:
        wait_until(lambda: not self.processes(), "no process is left")

    def end(self) -> None:
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def processes_with(mark: str) -> dict[int, list[str]]:
    """{number: command line} of the other processes with ``mark`` in their command line or environment."""
    processes = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            has_ended = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "Z"
            if not has_ended and mark.encode() in command + (entry / "environ").read_bytes():
                processes[int(entry.name)] = command.decode(errors="replace").split("\0")
        except OSError:
            continue  # it has ended meanwhile, or is not ours
    return processes


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < end, f"waited {HANG_S} s until {what}"
        time.sleep(0.1)


@contextmanager
def launched(lab: SleepingLab, *arguments: str) -> Iterator[subprocess.Popen]:
    """A torchrun of the lab whose ranks have started."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(lab.command(*arguments), cwd=ROOT, env=environment(), **quiet) as launcher:
        try:
            lab.wait_until_started()
            yield launcher
        finally:
            launcher.kill()
