"""``make fit`` says that a machine is ready, or in one line what is not as it should be."""

import sys
from pathlib import Path

import pytest

from shared.tools import fit
from shared.tools.fit import Step, problem

SAYS = (sys.executable, "-c", "print('two')")


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(fit, "ROOT", tmp_path)
    monkeypatch.setattr(fit, "LOG", tmp_path / "fit.log")
    (tmp_path / "course").mkdir()
    return tmp_path / "course"


def test_a_step_that_says_what_it_must_is_well(course: Path):
    assert problem(Step("it speaks", SAYS, "two"), course) is None
    assert "two" in fit.LOG.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (SAYS, "it did not say 'three'; fit.log holds"),
        ((sys.executable, "-c", "raise SystemExit(3)"), "it ended with exit code 3; fit.log holds"),
        (("no-such-program",), "no-such-program was not found: call `make setup`"),
        (("sleep", "600"), "it did not end within 0.1 s"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    command: tuple[str, ...], told: str, course: Path, monkeypatch: pytest.MonkeyPatch
):
    if command[0] == "sleep":
        monkeypatch.setattr(fit, "LIMIT_S", 0.1)
    complaint = problem(Step("it speaks", command, "three"), course)
    assert complaint is not None
    assert complaint.startswith(told)
    assert "\n" not in complaint
