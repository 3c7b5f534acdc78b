"""A process that runs is told from one that has ended, also when nobody has reaped it yet."""

import os
import sys
from pathlib import Path

import pytest

from shared.children import is_running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")


def test_this_process_runs():
    assert is_running(os.getpid())


def test_a_child_that_has_ended_does_not_run():
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], os.environ)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # a zombie: ended, but not reaped
    assert Path(f"/proc/{child}").exists()
    assert not is_running(child)
    os.waitpid(child, 0)
    assert not is_running(child)
