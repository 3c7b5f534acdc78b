"""Processes that a lab starts by itself, for faults that torchrun would end. Taught in lesson 02."""

import os
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

from shared.runtime.run import die_with_launcher

FORK = get_context("fork")  # a fork has imported torch already
SILENT, CRASHED = "nothing, it was ended", "nothing, it crashed"


def is_running(pid: int) -> bool:
    """Whether there is such a process; one that is dead and not yet reaped does not count. Linux only."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Child:
    """A process of its own that calls ``function(*args, **kwargs)``; it starts at once.

    What the function returns, as text, is what the child says. An error is said in one line. Its
    stderr is dropped: C++ writes stack traces there.
    """

    def __init__(self, function: Callable, *args, **kwargs) -> None:
        self._started = time.monotonic()
        self._receiver, self._sender = FORK.Pipe(duplex=False)
        self._process = FORK.Process(target=self._work, args=(function, args, kwargs))
        self._process.start()
        self._sender.close()

    def _work(self, function: Callable, args: tuple, kwargs: dict) -> None:
        die_with_launcher()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            said = str(function(*args, **kwargs))
        except Exception as error:
            said = f"{type(error).__name__}: {error}".splitlines()[0]
        self._sender.send((said, time.monotonic() - self._started))
        os._exit(0)  # the parent's own farewell is not for a child

    def _speaks(self, within_s: float) -> bool:
        """Whether it says something. If the machine stands still, that costs one short wait, not all."""
        waits = max(0, round(within_s / 0.05))
        return self._receiver.poll(0) or any(self._receiver.poll(0.05) for _ in range(waits))

    def outcome(self, limit_s: float) -> tuple[str, float]:
        """Return (what it said, after how many seconds). End it if it is silent for ``limit_s``."""
        try:
            if self._speaks(self._started + limit_s - time.monotonic()):
                return self._receiver.recv()
            return SILENT, limit_s
        except EOFError:
            return CRASHED, time.monotonic() - self._started
        finally:
            self._process.kill()
            self._process.join()
            self._receiver.close()
