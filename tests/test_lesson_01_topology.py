"""Lesson 01: reports that do not fit are noticed, and the lab with two agents leaves nothing behind."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from shared.runtime.errors import CourseError
from shared.runtime.loading import load_file
from shared.runtime.ports import free_port
from tests.helpers import ROOT, environment, python
from tests.sleeping_lab import wait_until

DRIVER = "lab_01_two_nodes.py"
REPORTS = ROOT / "labs" / "lab_01_reports.py"
SLEEPS = """
import os, time
from pathlib import Path
from shared.runtime.run import die_with_launcher
die_with_launcher()
Path("started", os.environ["RANK"]).touch()
time.sleep(600)
"""


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """What 3 + 4 processes say, in a process that is rank 4 of 7."""
    monkeypatch.setattr(dist, "get_rank", lambda: 4)
    monkeypatch.setattr(dist, "get_world_size", lambda: 7)
    found = []
    for node, size in enumerate((3, 4)):
        for local_rank in range(size):
            rank = len(found)
            report = {"rank": rank, "local_rank": local_rank, "node": node, "nodes": 2, "pid": 100 + rank}
            found.append(report | {"world_size": 7, "local_world_size": size})
    return found


def test_reports_that_fit_are_accepted(reports: list[dict]):
    load_file(REPORTS).check(reports[4], reports)


@pytest.mark.parametrize(
    ("rank", "field", "value", "expected"),
    [
        (2, "rank", 1, "ranks count from 0"),
        (5, "local_rank", 1, "local ranks count from 0"),
        (4, "rank", 5, "the rank is what counting gives"),
        (0, "node", 1, "the rank is what counting gives"),
        (4, "nodes", 3, "each node has reported"),
        (6, "pid", 105, "each rank is a process of its own"),
        (4, "world_size", 8, "the group agrees"),
    ],
)
def test_reports_that_do_not_fit_are_told(
    rank: int, field: str, value: int, expected: str, reports: list[dict]
):
    reports[rank][field] = value
    with pytest.raises(CourseError, match=expected):
        load_file(REPORTS).check(reports[4], reports)


@pytest.mark.parametrize(
    ("processes", "devices", "expected"),
    [(4, 2, [[0], [0], [1], [1]]), (2, 2, [[0], [1]]), (2, 4, [[0, 1], [2, 3]]), (3, 1, [[0], [0], [0]])],
)
def test_devices_are_shared_out(processes: int, devices: int, expected: list[list[int]]):
    devices_of = load_file(REPORTS).devices_of
    assert [devices_of(local_rank, processes, devices) for local_rank in range(processes)] == expected


def test_a_free_port_can_be_listened_on_and_is_not_given_twice():
    ports = [free_port() for _ in range(20)]
    assert len(set(ports)) == len(ports)
    store = dist.TCPStore("127.0.0.1", ports[0], is_master=True)
    assert store.port == ports[0]


@pytest.fixture
def labs(tmp_path: Path) -> Iterator[Path]:
    """A folder with the driver alone; the test adds the script of the ranks."""
    text = (ROOT / "labs" / DRIVER).read_text(encoding="utf-8")
    (tmp_path / DRIVER).write_text(text, encoding="utf-8")
    yield tmp_path
    for pid in living(tmp_path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)


def living(folder: Path) -> list[int]:
    """Processes that work in ``folder``: the agents and their ranks."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink() == folder:
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended meanwhile
    return found


@pytest.mark.slow
def test_a_failing_rank_ends_both_agents(labs: Path):
    (labs / "lab_01_reports.py").write_text(
        "import os, time\nfrom shared.runtime.run import die_with_launcher\ndie_with_launcher()\n"
        "if os.environ['RANK'] == '5': raise SystemExit('rank 5 fails')\ntime.sleep(600)\n"
    )
    done = python(labs / DRIVER, "static")
    assert done.returncode == 1
    assert "rank 5 fails" in done.stdout
    assert "the agents ended with exit codes" in done.stdout
    wait_until(lambda: not living(labs), "no process is left")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_nothing_is_left_of_a_driver_that_was_killed(labs: Path):
    (started := labs / "started").mkdir()
    (labs / "lab_01_reports.py").write_text(SLEEPS)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, labs / DRIVER], cwd=ROOT, env=environment(), **quiet) as driver:
        try:
            wait_until(lambda: len(list(started.iterdir())) == 7, "all ranks run")
        finally:
            driver.kill()
    wait_until(lambda: not living(labs), "no process is left")
