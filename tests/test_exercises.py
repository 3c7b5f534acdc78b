"""Stubs are not started, right answers are accepted, and each typical wrong one is told what is wrong."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from shared.tools.sync import stub_of
from tests.helpers import EXERCISE_FOLDER, EXERCISES, SCRIPTS, Done, torchrun
from tests.launch import Job, run_job
from tests.rules.labs import ACCEPTED, REJECTED

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Trial:
    """One answer to one exercise, checked by so many ranks."""

    exercise: str
    answer: Path
    ranks: int

    def job(self, folder: Path) -> Job:
        answer = self.answer
        if answer == stub_path(self.exercise):  # as a reader gets it, whatever this checkout holds by now
            answer = folder / f"{self.exercise}.py"
            answer.write_text(stub_of(solution(self.exercise).read_text(encoding="utf-8")), encoding="utf-8")
        return Job(SCRIPTS / "patient_check.py", (check_of(self.exercise), "--answer", answer), self.ranks)

    def __str__(self) -> str:
        return f"{self.exercise}-{self.answer.stem}-{self.ranks}"


def check_of(exercise: str) -> Path:
    return EXERCISE_FOLDER / exercise / "check.py"


def solution(exercise: str) -> Path:
    return EXERCISE_FOLDER / exercise / "solution.py"


def stub_path(exercise: str) -> Path:
    return EXERCISE_FOLDER / exercise / "exercise.py"


STUBS = [Trial(exercise, stub_path(exercise), 2) for exercise in EXERCISES]
SOLUTIONS = [Trial(exercise, solution(exercise), ranks) for exercise in EXERCISES for ranks in (2, 3, 4)]
WRONG = [
    Trial(exercise, answer, 3)
    for exercise in EXERCISES
    for answer in sorted((EXERCISE_FOLDER / exercise / "wrong_answers").glob("*.py"))
]
RIGHT = [
    Trial(exercise, answer, 3)
    for exercise in EXERCISES
    for answer in sorted((EXERCISE_FOLDER / exercise / "right_answers").glob("*.py"))
]


def announced(exercise: str, verdict: str) -> str:
    return f"Exercise {exercise.replace('_', ' ')}: {verdict}"


@pytest.mark.parametrize("trial", STUBS, ids=str)
def test_the_stub_is_not_started(trial: Trial, tmp_path: Path):
    done = run_job(trial.job(tmp_path))
    assert (done.returncode, done.stdout) == (0, announced(trial.exercise, "not started") + "\n")


@pytest.mark.parametrize("trial", SOLUTIONS, ids=str)
def test_the_solution_is_right(trial: Trial, tmp_path: Path):
    done = run_job(trial.job(tmp_path))
    assert done.returncode == 0, done.stdout
    assert announced(trial.exercise, "right: ") in done.stdout
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize("trial", WRONG, ids=str)
def test_a_wrong_answer_is_rejected_for_its_reason(trial: Trial, tmp_path: Path):
    reason = trial.answer.read_text(encoding="utf-8").splitlines()[0].removeprefix(REJECTED)
    done = run_job(trial.job(tmp_path))
    assert done.returncode == 1, done.stdout
    assert reason in done.stdout


@pytest.mark.parametrize("trial", RIGHT, ids=str)
def test_a_right_answer_may_look_unusual(trial: Trial, tmp_path: Path):
    assert trial.answer.read_text(encoding="utf-8").startswith(ACCEPTED)
    done = run_job(trial.job(tmp_path))
    assert done.returncode == 0, done.stdout
    assert announced(trial.exercise, "right: ") in done.stdout


def test_a_slow_rank_does_not_change_what_is_wrong(tmp_path: Path):
    exercise, line = "23_batching_server", '        server = rpc.rpc_sync("worker0", held)\n'
    text = check_of(exercise).read_text(encoding="utf-8")
    assert line in text
    slow = tmp_path / "check.py"  # rank 1 asks for the server when the others' calls could hold its threads
    slow.write_text(text.replace(line, f"        time.sleep(group.rank % 2)\n{line}"), encoding="utf-8")
    waits = EXERCISE_FOLDER / exercise / "wrong_answers" / "waits.py"
    done = run_job(Job(slow, ("--answer", waits), ranks=3))
    assert done.returncode == 1
    assert "round 1: 4 of 4 calls were not answered within 5 s" in done.stdout


def check(answer: Path) -> Done:
    """The first exercise, by the very command that a lesson shows."""
    return torchrun(check_of(EXERCISES[0]), "--answer", answer, ranks=2)


def test_a_missing_answer_is_told_in_one_line(tmp_path: Path):
    done = check(tmp_path / "missing.py")
    first = done.stdout.splitlines()[0]
    assert done.returncode == 1
    assert first == f"exercise {EXERCISES[0]}: there is no file missing.py; run the cell that writes it"


def test_an_answer_that_cannot_be_imported_is_told_in_one_line(tmp_path: Path):
    broken = tmp_path / "broken.py"
    broken.write_text("def share_of(:\n", encoding="utf-8")
    done = check(broken)
    assert done.returncode == 1
    assert done.stdout.startswith("broken.py cannot be imported: SyntaxError: ")
