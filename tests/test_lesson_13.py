"""Lesson 13: its labs read processes and logs right, and the script of lesson 10 survives random kills."""

import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from shared.runtime.errors import CourseError
from shared.runtime.loading import load_file
from shared.runtime.processes import is_running
from shared.training.launches import attempts_in, newest
from tests.helpers import ROOT, SCRIPTS, python

LABS = ROOT / "labs"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")


@pytest.fixture(scope="module")
def torchft() -> ModuleType:
    return load_file(LABS / "lab_13_torchft.py")


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
    lab, results = LABS / "lab_13_interval.py", str(tmp_path)
    done = python(lab, OMP_NUM_THREADS="2", RANK_BY_RANK_RESULTS=results)
    assert done.returncode == 0, done.stdout
    assert "bit for bit" in done.stdout


STEP = '{{"step": {}, "loss": 1.0}}\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (STEP.format(1) + STEP.format(2), [(0, 2)]),
        (STEP.format(1) + '{"step": 2, "los', [(0, 1)]),  # rank 0 was killed while it wrote
        (STEP.format(9) + "going on from step_00000007\n", [(0, 9), (7, 7)]),
        (STEP.format(9) + "going on from step_00000007\n" + STEP.format(8), [(0, 9), (7, 8)]),
        (STEP.format(1) + STEP.format(2) + STEP.format(1), [(0, 2), (0, 1)]),  # no checkpoint yet
        ('{"epoch": 1, "accuracy": 0.9}\nnot JSON\n' + STEP.format(3), [(0, 3)]),
    ],
)
def test_attempts_are_read_from_what_rank_0_wrote(text: str, expected: list):
    assert [(attempt.first, attempt.last) for attempt in attempts_in(text)] == expected


def test_a_save_that_was_not_finished_does_not_count(tmp_path: Path):
    assert newest(tmp_path / "none") == 0
    for name in ("step_00000007", "step_00000014", "step_00000021.part"):
        (tmp_path / name).mkdir()
    assert newest(tmp_path) == 14


class ToldGroup:
    """A replica group that has ended, and told this."""

    def __init__(self, *entries: dict) -> None:
        self.entries = entries

    def told(self, event: str) -> list[dict]:
        return [entry for entry in self.entries if entry["event"] == event]


def survivor_and_replacement(torchft: ModuleType, change: str = "") -> list[ToldGroup]:
    """As in a good run, but for the first group's line that begins with ``change``."""
    lines = []
    for step in range(60):
        groups = 1 if 10 <= step < 30 else 2
        if step == 10:
            lines.append({"event": "step", "step": 10, "groups": 2, "counts": False})
        lines.append({"event": "step", "step": step, "groups": groups, "counts": True})
    weights = {"event": "end", "weights": torchft.unbroken(torchft.Config())}
    kept = [line for line in lines if not change or not json.dumps(line).startswith(change)]
    return [ToldGroup(*kept, weights), ToldGroup({"event": "healed", "step": 30}, weights)]


def test_a_good_run_of_torchft_is_green(torchft: ModuleType):
    torchft.check(*survivor_and_replacement(torchft), torchft.Config())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ('{"event": "step", "step": 10, "groups": 2', "only step 10 was to be done again"),
        ('{"event": "step", "step": 20', "the survivor was to do each step once"),
        ('{"event": "step", "step": 10, "groups": 1', "the survivor was to do each step once"),
    ],
)
def test_a_bad_run_of_torchft_is_red(torchft: ModuleType, change: str, expected: str):
    with pytest.raises(CourseError, match=expected):
        torchft.check(*survivor_and_replacement(torchft, change), torchft.Config())


def test_groups_that_end_apart_are_red(torchft: ModuleType):
    survivor, replacement = survivor_and_replacement(torchft)
    end = {"event": "end", "weights": [[[0.0] * 8], [0.0]]}
    apart = ToldGroup(replacement.entries[0], end)
    with pytest.raises(CourseError, match="different weights"):
        torchft.check(survivor, apart, torchft.Config())
    both = [ToldGroup(*survivor.entries[:-1], end), apart]
    with pytest.raises(CourseError, match="differs by"):
        torchft.check(*both, torchft.Config())


@pytest.mark.slow
@pytest.mark.heavy
def test_random_kills_lose_nothing():
    done = python(SCRIPTS / "soak.py", "--kills", "3", "--seed", "1")
    assert done.returncode == 0, done.stdout
    assert "survived 3 kills" in done.stdout
