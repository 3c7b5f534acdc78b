"""However a lab is stopped, none of its processes is left."""

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError

from tests.helpers import ROOT, notebook_of
from tests.kernels import OWN_KERNEL, kernel_environment
from tests.rules.cells import SET_UP
from tests.sleeping_lab import RANKS, SleepingLab, launched

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent"),
]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[SleepingLab]:
    folder = tmp_path / "ranks that started"
    folder.mkdir()
    lab = SleepingLab(folder)
    yield lab
    lab.end()


def in_a_cell(lab: SleepingLab) -> str:
    return "!" + shlex.join(lab.command())


@pytest.fixture
def kernel(lab: SleepingLab) -> Iterator[KernelManager]:
    """A kernel in whose running cell the ranks sleep."""
    manager = KernelManager(kernel_name=OWN_KERNEL)
    with kernel_environment(ROOT):
        manager.start_kernel(cwd=str(ROOT / "notebooks"))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=120)
        client.execute(SET_UP)
        client.execute(in_a_cell(lab))
        lab.wait_until_started()
        yield manager
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def kill(kernel: KernelManager) -> None:
    os.kill(kernel.provisioner.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "stop",
    [
        KernelManager.interrupt_kernel,
        KernelManager.restart_kernel,
        lambda kernel: kernel.restart_kernel(now=True),
        kill,
    ],
    ids=["interrupt", "restart", "forced restart", "SIGKILL"],
)
def test_stopping_the_kernel_ends_all_ranks(stop: Callable, kernel: KernelManager, lab: SleepingLab):
    assert len(lab.processes()) > RANKS
    stop(kernel)
    lab.wait_until_gone()


def test_a_cell_that_runs_out_of_time_ends_all_ranks(lab: SleepingLab):
    for timeout in (10, 30, 120):  # the first that suffices for the ranks to start
        client = NotebookClient(notebook_of(SET_UP, in_a_cell(lab)), timeout=timeout, kernel_name=OWN_KERNEL)
        with kernel_environment(ROOT), pytest.raises(CellTimeoutError):
            client.execute(cwd=str(ROOT / "notebooks"))
        if lab.started():
            break
        lab.end()
    assert lab.started()
    lab.wait_until_gone()


def test_a_launcher_that_is_killed_takes_its_ranks_along(lab: SleepingLab):
    with launched(lab) as launcher:
        assert len(lab.processes()) == RANKS + 1
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
    lab.wait_until_gone()


def test_without_that_the_ranks_would_stay(lab: SleepingLab):
    """The fault that ``die_with_launcher`` cures: it shows that these tests can fail."""
    with launched(lab, "outlive") as launcher:
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
    time.sleep(1)  # time for them to go, if they would
    assert len(lab.processes()) == RANKS
    lab.end()
    lab.wait_until_gone()
