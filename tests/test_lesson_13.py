"""A process that runs is told from one that has ended, also when nobody has reaped it yet."""

import os
import sys
from pathlib import Path

import pytest

from shared.runtime.processes import is_running
from tests.helpers import ROOT, python

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


@pytest.mark.slow
def test_the_lab_that_forks_does_not_hang_where_torch_has_several_threads(tmp_path: Path):
    lab, results = ROOT / "labs" / "lab_13_interval.py", str(tmp_path)
    done = python(lab, OMP_NUM_THREADS="2", RANK_BY_RANK_RESULTS=results)
    assert done.returncode == 0, done.stdout
    assert "bit for bit" in done.stdout
