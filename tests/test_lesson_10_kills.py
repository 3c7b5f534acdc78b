"""The script of lesson 10 is killed in 60 ways; it goes on, and loses at most what it has not saved yet."""

from pathlib import Path

import pytest

from tests.helpers import ROOT
from tests.kills import CASES, STEPS, Case, kill_and_go_on, largest_difference, problems_of, unbroken

TRAIN = ROOT / "labs" / "lab_10_train.py"
TOLERANCE = 1e-12  # float64
ROWS = [pytest.param(case, id=str(case)) for case in CASES]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unbroken(TRAIN, tmp_path_factory.mktemp("kills") / "whole")


@pytest.mark.parametrize("case", ROWS)
def test_a_run_that_is_killed_goes_on_and_ends_like_the_unbroken_one(case: Case, whole: Path, tmp_path: Path):
    outcome = kill_and_go_on(case, TRAIN, tmp_path / "killed")
    assert problems_of(case, outcome) == [], outcome.said
    last = f"step_{STEPS:08d}"
    assert largest_difference(tmp_path / "killed" / "run" / last, whole / last) <= TOLERANCE


@pytest.mark.parametrize(
    ("case", "good", "bad", "problem"),
    [
        (  # the name is given by the next save only
            Case("kill -9 of a rank", "during a step", 1),
            "        part.rename(self.final)\n",
            "        for late in self.final.parent.glob('late_*'):\n"
            "            late.rename(late.with_name(late.name[5:]))\n"
            "        part.rename(part.with_name(f'late_{self.final.name}'))\n",
            "0 steps are kept, not 4",
        ),
        (
            Case("SIGTERM", "during evaluation", 1),
            "        if stop_sign.seen_by_all():\n            return None\n",
            "        stop_sign.seen_by_all()\n",
            "the evaluation went on to its end",
        ),
        (
            Case("SIGHUP", "during a step", 1),
            "signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)",
            "signal.SIGTERM, signal.SIGUSR1)",
            "steps are lost",
        ),
        (
            Case("kill -9 of a rank", "during a step", 2),
            "        traceback.print_exc(limit=4, chain=False)",
            "        traceback.print_exc()",
            "a traceback of",
        ),
    ],
)
def test_a_fault_in_the_script_is_found(case: Case, good: str, bad: str, problem: str, tmp_path: Path):
    text = TRAIN.read_text(encoding="utf-8")
    assert text.count(good) == 1
    faulty = tmp_path / "faulty.py"
    faulty.write_text(text.replace(good, bad), encoding="utf-8")
    problems = problems_of(case, kill_and_go_on(case, faulty, tmp_path / "killed", patience_s=10))
    assert any(problem in line for line in problems), problems
