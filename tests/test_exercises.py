"""Stubs are not started, right answers are accepted, and each typical wrong one is told what is wrong.

Try one: ``.venv/bin/python -m pytest tests/test_exercises.py -k "05_reduce_scatter and wrong"``.
"""

import re
from pathlib import Path

import pytest

from shared.runtime.stubs import stub_of
from tests.helpers import EXERCISES, LABS, SCRIPTS, Done
from tests.launch import Job, run_job, warm_torchrun
from tests.planted import Right, Wrong, answers_of, changed, solution_of

ANSWERS = [(exercise, answer) for exercise in EXERCISES for answer in answers_of(exercise)]
WRONG = [(exercise, answer) for exercise, answer in ANSWERS if isinstance(answer, Wrong)]
RIGHT = [(exercise, answer) for exercise, answer in ANSWERS if not isinstance(answer, Wrong)]
OF_A_HANG = ("stuck: it waited", "hangs:", "another rank waits in it")


def check_of(exercise: str) -> Path:
    return LABS / f"lesson_{exercise[:2]}" / "check.py"


def ranks_of(exercise: str) -> int:
    """With so many its answers are tried: at least 3, and as many as the check asks for."""
    return max(3, int(re.search(r"ranks=(\d)", check_of(exercise).read_text(encoding="utf-8"))[1]))


def announced(exercise: str, verdict: str) -> str:
    return f"Exercise {exercise.replace('_', ' ')}: {verdict}"


def judged(exercise: str, text: str, ranks: int, folder: Path, **variables: str) -> Done:
    """How the check of an exercise ends with the answer ``text``."""
    answer = folder / "exercise.py"
    answer.write_text(text, encoding="utf-8")
    arguments = (check_of(exercise), "--answer", answer)
    return run_job(Job(SCRIPTS / "patient_check.py", arguments, ranks, variables))


@pytest.mark.parametrize("exercise", EXERCISES)
def test_answers_fit_the_solution_and_are_rejected_for_different_reasons(exercise: str):
    solution = solution_of(exercise)
    answers = answers_of(exercise)
    for answer in answers:
        text = answer.text(solution)
        compile(text, exercise, "exec")
        assert text != solution, answer.what
    reasons = [answer.told for answer in answers if isinstance(answer, Wrong)]
    assert len(set(reasons)) == len(reasons) >= 3
    assert len(answers) > len(reasons)


@pytest.mark.slow
@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_stub_is_not_started(exercise: str, tmp_path: Path):
    done = judged(exercise, stub_of(solution_of(exercise)), 2, tmp_path)
    assert (done.returncode, done.stdout) == (0, announced(exercise, "not started") + "\n")


@pytest.mark.parametrize("ranks", [3, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_solution_is_right(exercise: str, ranks: int, tmp_path: Path):
    done = judged(exercise, solution_of(exercise), max(ranks, ranks_of(exercise)), tmp_path)
    assert done.returncode == 0, done.stdout
    assert announced(exercise, "right: ") in done.stdout
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.slow
def test_with_too_few_ranks_there_is_no_praise(tmp_path: Path):
    done = judged("05_reduce_scatter", solution_of("05_reduce_scatter"), 2, tmp_path)
    assert done.returncode == 0
    assert (
        announced("05_reduce_scatter", "no mistake shows with 2 rank(s), but some show only with")
        in done.stdout
    )


@pytest.mark.slow
@pytest.mark.parametrize(("exercise", "answer"), WRONG, ids=lambda part: getattr(part, "what", part))
def test_a_wrong_answer_is_rejected_for_its_reason(exercise: str, answer: Wrong, tmp_path: Path):
    hangs = any(words in answer.told for words in OF_A_HANG)
    patience = {"PATIENCE_S": "10"} if hangs else {}
    done = judged(exercise, answer.text(solution_of(exercise)), ranks_of(exercise), tmp_path, **patience)
    assert done.returncode == 1, done.stdout
    assert answer.told in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("exercise", "answer"), RIGHT, ids=lambda part: getattr(part, "what", part))
def test_a_right_answer_may_look_unusual(exercise: str, answer: Right, tmp_path: Path):
    done = judged(exercise, answer.text(solution_of(exercise)), ranks_of(exercise), tmp_path)
    assert done.returncode == 0, done.stdout
    assert announced(exercise, "right: ") in done.stdout


ENDINGS = {
    "while images == 0: pass": "stuck: it did not end (exercise.py, line 20, in average_gradients)",
    "if images == 0: sys.exit(0)": "wrong: the answer ended the process with exit code 0",
    "if images == 0: os._exit(0)": "wrong: the answer ended the process with exit code 0",
    "if images == 0: ctypes.string_at(0)": "wrong: SIGSEGV ended the process (exercise.py, line 20, in ave",
}


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
def test_an_answer_that_ends_its_process_or_never_ends_gets_a_verdict(ending: str, tmp_path: Path):
    line = "    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]\n"
    solution = solution_of("06_uneven_average")
    text = changed(solution, line, f"    {ending}\n{line}")
    text = f"{text}\n\nimport ctypes, os, sys\n"
    done = judged("06_uneven_average", text, 2, tmp_path, PATIENCE_S="3")
    assert done.returncode == 1
    assert f"[rank 1] Exercise 06 uneven average: {ENDINGS[ending]}" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("See it line by line on all ranks: python ")


def check(answer: Path) -> Done:
    """The first exercise, as a lesson starts it."""
    return warm_torchrun(check_of(EXERCISES[0]), "--answer", answer)


@pytest.mark.slow
def test_a_missing_answer_is_told_in_one_line(tmp_path: Path):
    done = check(tmp_path / "missing.py")
    first = done.stdout.splitlines()[0]
    assert done.returncode == 1
    assert first == f"exercise {EXERCISES[0]}: there is no file missing.py; run the cell that writes it"


@pytest.mark.slow
def test_an_answer_that_cannot_be_imported_is_told_in_one_line(tmp_path: Path):
    broken = tmp_path / "broken.py"
    broken.write_text("def share_of(:\n", encoding="utf-8")
    done = check(broken)
    assert done.returncode == 1
    assert done.stdout.startswith("broken.py cannot be imported: SyntaxError: ")
