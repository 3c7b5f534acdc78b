"""A function in a process of its own, of which the caller says how it ended, whatever it did."""

import faulthandler
import json
import os
import re
import select
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from shared.runtime.run import run

LOOK_S = 0.2
FRAME = re.compile(r'^  File "(?P<path>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)


@dataclass(frozen=True)
class Ended:
    """How a supervised function ended.

    Attributes:
        result: the text that it returned; None if its process ended, or was ended, before it returned.
        code: exit code of its process; a negative one is the signal that ended it.
        given_up: it was still at work when ``give_up`` said that this is enough.
        stack: where its threads stood when a signal ended it, as ``faulthandler`` writes it.
    """

    result: str | None
    code: int
    given_up: bool
    stack: str

    def place_in(self, path: Path) -> str | None:
        """Where in the file ``path`` it stood: ``exercise.py, line 7, in average``; None if it did not."""
        for frame in FRAME.finditer(self.stack):  # of each thread, the innermost frame comes first
            if Path(frame["path"]) == path:
                return f"{path.name}, line {frame['line']}, in {frame['function']}"
        return None


def supervised(function: Callable[[], str], give_up: Callable[[], bool]) -> Ended:
    """Call ``function()`` in a fork of this process and return how that ended.

    The fork survives neither this process (on Linux) nor ``give_up()``, which is asked every ``LOOK_S``
    seconds. Call it before this process starts threads: a fork inherits locks that they hold.
    """
    with tempfile.TemporaryFile("w+") as stack:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            run(_tell, function, writer, stack)
        os.close(writer)
        try:
            text, given_up = _listen(reader, give_up)
            if given_up:
                os.kill(child, signal.SIGABRT)  # faulthandler writes down where it stands
            status = os.waitpid(child, 0)[1]
        except BaseException:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
        finally:
            os.close(reader)
        stack.seek(0)
        result = json.loads(text) if text else None
        return Ended(result, os.waitstatus_to_exitcode(status), given_up, stack.read())


def _tell(function: Callable[[], str], writer: int, stack: TextIO) -> None:
    faulthandler.enable(file=stack, all_threads=True)
    result = function()
    os.write(writer, json.dumps(result).encode())


def _listen(reader: int, give_up: Callable[[], bool]) -> tuple[bytes, bool]:
    """What the fork wrote until it closed the pipe, and whether ``give_up`` ended the wait."""
    text = b""
    while True:
        ready, _, _ = select.select([reader], [], [], LOOK_S)
        if ready:
            part = os.read(reader, 1 << 16)
            if not part:
                return text, False
            text += part
        elif not text and give_up():
            return text, True
