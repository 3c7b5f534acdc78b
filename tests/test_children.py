"""Processes that a lab starts by itself: what they say, how they are bounded, that none is left."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import zmq
from jupyter_client.connect import LocalPortCache

from shared.runtime.children import CRASHED, SILENT, Child, is_running
from shared.runtime.ports import HERE, free_ports, is_taken
from tests.sleeping_lab import wait_until

LIMIT_S = 20.0


def complain() -> None:
    raise ValueError("wrong\nand more")


@pytest.mark.parametrize(
    ("function", "arguments", "said"),
    [
        (max, (3, 4), "4"),
        (str.upper, ("a\nb",), "A\nB"),
        (complain, (), "ValueError: wrong"),
        (os._exit, (3,), CRASHED),
    ],
)
def test_a_child_says_what_came_of_its_function(function, arguments: tuple, said: str):
    text, seconds = Child(function, *arguments).outcome(LIMIT_S)
    assert text == said
    assert 0 < seconds < LIMIT_S


def test_a_silent_child_is_ended(tmp_path: Path):
    def write_and_sleep() -> None:
        (tmp_path / "new").write_text(str(os.getpid()), encoding="utf-8")
        (tmp_path / "new").replace(tmp_path / "child")
        time.sleep(60)

    child = Child(write_and_sleep)
    while not (tmp_path / "child").exists():
        time.sleep(0.01)
    assert child.outcome(0.2) == (SILENT, 0.2)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "child").read_text(encoding="utf-8")), 0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_child_ends_with_its_parent(tmp_path: Path):
    def grandchild() -> None:
        (tmp_path / "new").write_text(str(os.getpid()), encoding="utf-8")
        (tmp_path / "new").replace(tmp_path / "grandchild")
        time.sleep(60)

    def parent() -> None:
        Child(grandchild)
        while not (tmp_path / "grandchild").exists():
            time.sleep(0.01)
        os._exit(0)

    assert Child(parent).outcome(LIMIT_S)[0] == CRASHED
    pid = int((tmp_path / "grandchild").read_text(encoding="utf-8"))
    wait_until(lambda: not is_running(pid), "the grandchild has ended")


def test_free_ports_are_free_and_different():
    ports = free_ports(3)
    assert len(set(ports)) == 3
    assert not any(is_taken(port) for port in ports)
    with socket.create_server((HERE, ports[0])):
        assert is_taken(ports[0])


def test_the_port_of_a_kernel_is_given_to_nobody_else():
    """Only a server that names it, and takes it from a connection that has ended, gets it."""
    port = LocalPortCache.instance().find_available_port(HERE)
    with pytest.raises(OSError, match="in use"), socket.socket() as other:
        other.bind((HERE, port))
    with zmq.Context() as context, context.socket(zmq.ROUTER) as shell:
        shell.bind(f"tcp://{HERE}:{port}")


def test_a_process_runs_until_it_has_ended():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert is_running(child.pid)
        child.stdin.close()
        wait_until(lambda: not is_running(child.pid), "it is dead")  # and not yet reaped
        assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
    assert not is_running(child.pid)
