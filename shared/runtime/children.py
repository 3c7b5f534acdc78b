"""Processes that a lab starts by itself, for faults that torchrun would end. Taught in lesson 02."""

import os
import signal
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection

import psutil

from shared.runtime.run import die_with_launcher

FORK = get_context("fork")  # a fork has imported torch already
SILENT = "nothing, it was ended"
CRASHED = "nothing, it crashed"
POLL_S = 0.05


def is_running(pid: int) -> bool:
    """Whether there is such a process; one that is dead and not yet reaped does not count."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Child:
    """A fork that calls ``function(*args)``; it starts at once.

    What the function returns, as text, is what the child says. An error is said in one line. Its
    stderr is dropped: C++ writes stack traces there. One that ``stays`` lives on, for others may still
    talk to it, until ``close()``.
    """

    def __init__(self, function: Callable, *args, stays: bool = False) -> None:
        self._started = time.monotonic()
        self.receiver, sender = FORK.Pipe(duplex=False)  # of one pair: (what it said, after how many seconds)
        self.process = FORK.Process(target=self._work, args=(sender, stays, function, args))
        self.process.start()
        sender.close()

    def _work(self, sender: Connection, stays: bool, function: Callable, args: tuple) -> None:
        die_with_launcher()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            text = str(function(*args))
        except Exception as error:
            text = f"{type(error).__name__}: {error}".splitlines()[0]
        seconds = time.monotonic() - self._started
        sender.send((text, seconds))
        if stays:
            signal.pause()
        os._exit(0)  # the parent's own farewell is not for a child

    def _speaks(self, within_s: float) -> bool:
        """Whether it says something. If the machine stands still, that costs one short wait, not all."""
        if self.receiver.poll(0):
            return True
        for _ in range(round(within_s / POLL_S)):
            if self.receiver.poll(POLL_S):
                return True
        return False

    def outcome(self, limit_s: float) -> tuple[str, float]:
        """Return (what it said, after how many seconds). End it if it is silent for ``limit_s``."""
        try:
            if self._speaks(self._started + limit_s - time.monotonic()):
                return self.receiver.recv()
            return SILENT, limit_s
        except EOFError:
            return CRASHED, time.monotonic() - self._started
        finally:
            self.close()

    def close(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.join()
        self.receiver.close()
