"""Lesson 27: hosts are gone however a lab ends, and its checks of places and wires can fail."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from shared.runtime.errors import CourseError
from shared.runtime.loading import load_file
from tests.helpers import ROOT, environment, python
from tests.sleeping_lab import processes_with, wait_until

from lesson_27 import cable, needs

LABS = ROOT / "labs"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(LABS))
    (path,) = LABS.rglob(f"{name}.py")
    return load_file(path)


@pytest.fixture
def possible() -> None:
    missing = needs.hosts()
    if missing:
        pytest.skip(missing)


# --- Where hosts cannot be made ---


def test_another_system_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert needs.hosts().startswith("namespaces are Linux's")


@pytest.mark.parametrize(("tool", "package"), [("unshare", "util-linux"), ("ip", "iproute2")])
def test_the_package_that_is_missing_is_told(tool: str, package: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(needs, "program", lambda name: None if name == tool else name)
    assert needs.hosts() == f"the command {tool} was not found: install the package {package}"


@pytest.mark.parametrize("trial", ["echo one; echo two >&2; exit 1", "exit 1"])
def test_what_is_not_allowed_is_told(trial: str, possible: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(needs, "TRIAL", trial)
    reason = "two" if "two" in trial else "exit code 1"
    advice = "be root, or start a container with --privileged"
    assert needs.hosts() == f"making namespaces is not allowed ({reason}): {advice}"


def test_a_device_that_is_missing_is_told(possible: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(needs, "TUN", tmp_path / "tun")
    assert needs.hosts() is None
    assert needs.cables().startswith(f"{tmp_path}/tun cannot be opened (No such file or directory): ")


@pytest.mark.slow
def test_a_lab_that_cannot_make_hosts_says_so_and_ends_well(tmp_path: Path):
    done = python(LABS / "lesson_27" / "hosts.py", PATH="/nonexistent", RANK_BY_RANK_RESULTS=str(tmp_path))
    line = "not run here: the command unshare was not found: install the package util-linux"
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines() == [line]
    (recorded,) = tmp_path.glob("lesson_27_hosts.*.json")
    assert json.loads(recorded.read_text(encoding="utf-8"))["ranks"] == [{"not run here": line}]


# --- Nothing is left ---


def ranks_of(commands: dict[int, list[str]]) -> int:
    """How many processes run the first script that the lab launches, agents not counted."""
    script = str(LABS / "lab_27_who.py")
    return sum(script in words and "torch.distributed.run" not in words for words in commands.values())


@pytest.fixture
def launch(possible: None, tmp_path: Path) -> Iterator[tuple[subprocess.Popen, str]]:
    """The lab that starts torchrun on two hosts, when ranks run on both, and the mark of its processes."""
    settings = environment(RANK_BY_RANK_RESULTS=str(tmp_path), TMPDIR=str(tmp_path))
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    lab = subprocess.Popen(
        [sys.executable, LABS / "lesson_27" / "launch.py", "1"],
        env=settings,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's `&` has it ignored
        **quiet,
    )
    mark = f"RANK_BY_RANK_RESULTS={tmp_path}"
    try:
        ranks = lambda: ranks_of(processes_with(mark))  # noqa: E731
        wait_until(lambda: ranks() >= 2 or lab.poll() is not None, "ranks run on both hosts")
        assert lab.poll() is None
        yield lab, mark
    finally:
        lab.kill()
        lab.wait()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "SIGKILL"])
def test_no_host_is_left(number: int, launch: tuple[subprocess.Popen, str]):
    lab, mark = launch
    assert len(processes_with(mark)) > 6  # the lab, hosts, agents and ranks
    lab.send_signal(number)
    assert lab.wait() == (130 if number == signal.SIGINT else -number)
    wait_until(lambda: not processes_with(mark), "no process of the lab is left, and so no namespace")


A_HOST_FAILS = """
from pathlib import Path
import shared
from lesson_27.hosts import network, run_with_hosts

def main(cfg: None) -> None:
    try:
        with network(2) as net:
            first = net.hosts[0].pid
            net.hosts[1].ask("false")
    finally:
        print("first host left:", Path(f"/proc/{first}").exists())

run_with_hosts("none", main, None)
"""


def test_a_host_that_fails_takes_the_others_along(possible: None):
    done = python("-c", A_HOST_FAILS)
    assert done.returncode == 1
    assert done.stdout.splitlines() == ["first host left: False", "node-b: false: "]


# --- The checks can fail ---


def place(rank: int, local_rank: int, machine: int, name: str) -> dict:
    return {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "GROUP_RANK": machine,
        "LOCAL_WORLD_SIZE": 1,
        "GROUP_WORLD_SIZE": 2,
        "name": name,
    }


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (place(1, 0, 1, "b"), []),
        (place(1, 0, 1, "a"), ["two agents run on one machine: was this what you wanted?"]),
        (place(1, 1, 1, "b"), ["machine 1: its ranks do not count from 0"]),
        (place(1, 0, 2, "b"), ["the numbers of the machines are [0, 2]"]),
    ],
)
def test_places_that_are_wrong_are_found(second: dict, expected: list, monkeypatch: pytest.MonkeyPatch):
    who = load("lab_27_who", monkeypatch)
    assert who.problems([place(0, 0, 0, "a"), second]) == expected


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("proof_wire", monkeypatch)


@pytest.mark.parametrize("measured", [999_999, 1_000_000 + 32 * 1024 + 1_449])
def test_bytes_too_few_or_too_many_are_found(measured: int, wire: ModuleType):
    wire.assert_bytes("x", 1_000_000, 1_000_000, 0, wire.Config())
    wire.assert_bytes("x", 1_000_000 + 32 * 1024 + 1_448, 1_000_000, 1_448, wire.Config())
    with pytest.raises(CourseError, match="the formula says 1,000,000"):
        wire.assert_bytes("x", measured, 1_000_000, 1_448, wire.Config())


def test_a_wire_that_is_too_fast_is_found(wire: ModuleType):
    wire.assert_not_too_fast("x", 0.34, 2**22, wire.Config())
    with pytest.raises(CourseError, match=r"the wire alone needs 0\.333 s"):
        wire.assert_not_too_fast("x", 0.3, 2**22, wire.Config())


# --- Cables in user space ---


def frame(port: int, flags: int, protocol: int = 6) -> bytes:
    """Ethernet, IPv4 and TCP without options."""
    ip = bytes([0x45, *[0] * 8, protocol, *[0] * 10])
    return (
        bytes(12)
        + b"\x08\x00"
        + ip
        + bytes(2)
        + port.to_bytes(2, "big")
        + bytes(9)
        + bytes([flags, *[0] * 6])
    )


@pytest.mark.parametrize(
    ("port", "flags", "protocol", "dropped"),
    [
        (29500, 2, 6, False),
        (29501, 2, 6, True),
        (29501, 18, 6, False),
        (29501, 16, 6, False),
        (29501, 2, 17, False),
    ],
    ids=["an open port", "a closed one", "an answer", "a later packet", "not TCP"],
)
def test_the_firewall_drops_new_connections_to_closed_ports(
    port: int, flags: int, protocol: int, dropped: bool
):
    assert cable.opens_closed_port(frame(port, flags, protocol), [range(29500, 29501)]) is dropped
