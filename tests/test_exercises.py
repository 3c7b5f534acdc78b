"""Stubs are not started, right answers are accepted, and each typical wrong one is told what is wrong."""

from pathlib import Path

import pytest

from shared.runtime.stubs import stub_of
from tests.answers import Answer, answers_of, right, solution_of, wrong
from tests.helpers import EXERCISE_FOLDER, EXERCISES, ROOT, SCRIPTS, Done
from tests.launch import Job, run_job, warm_torchrun

WRONG_ANSWERS_AT_LEAST = 3
ANSWERS = [(exercise, answer) for exercise in EXERCISES for answer in answers_of(exercise)]
WRONG = [pair for pair in ANSWERS if not pair[1].is_right]
RIGHT = [pair for pair in ANSWERS if pair[1].is_right]
OF_A_HANG = ("stuck: it waited", "hangs:", "another rank waits in it")


def check_of(exercise: str) -> Path:
    return EXERCISE_FOLDER / exercise / "check.py"


def announced(exercise: str, verdict: str) -> str:
    return f"Exercise {exercise.replace('_', ' ')}: {verdict}"


def judged(exercise: str, text: str, ranks: int, folder: Path, **variables: str) -> Done:
    """How the check of an exercise ends with the answer ``text``."""
    answer = folder / "exercise.py"
    answer.write_text(text, encoding="utf-8")
    arguments = (check_of(exercise), "--answer", answer)
    return run_job(Job(SCRIPTS / "patient_check.py", arguments, ranks, variables))


def table_problems(exercise: str, answers: list[Answer], solution: str) -> list[str]:
    reasons = [answer.told for answer in answers if not answer.is_right]
    problems = []
    if len(reasons) < WRONG_ANSWERS_AT_LEAST:
        problems.append(f"{exercise} has {len(reasons)} wrong answers, wanted are {WRONG_ANSWERS_AT_LEAST}")
    if len(set(reasons)) < len(reasons):
        problems.append(f"{exercise}: two wrong answers are rejected for the same reason")
    for answer in answers:
        try:
            text = answer.text(solution)
            compile(text, exercise, "exec")
        except (ValueError, SyntaxError) as error:
            problems.append(f"{exercise}: {answer.what} {error}")
        else:
            if text == solution or not answer.told:
                problems.append(f"{exercise}: {answer.what} It changes nothing, or expects no words")
    return problems


def test_each_exercise_has_answers_that_fit_its_solution():
    tables = sorted((ROOT / "tests" / "answers").glob("exercise_*.py"))
    assert [path.stem for path in tables] == [f"exercise_{exercise[:2]}" for exercise in EXERCISES]
    problems = []
    for exercise in EXERCISES:
        problems += table_problems(exercise, answers_of(exercise), solution_of(exercise))
    assert not problems, "\n".join(problems)


SMALL = """
def double(x):
    # solution: begin
    if x:
        return 2 * x
    return 0
    # solution: end


def half(x):
    return x / 2
"""
LINES = """
if x:
    return 2 * x
"""
TABLE = [
    wrong("", "a", ("2 * x", "3 * x")),
    wrong("", "b", (LINES, "x += 1")),
    wrong("", "c", double="return x"),
]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([*TABLE, right("", below="double = int")], None),
        (TABLE[1:], "90_small has 2 wrong answers, wanted are 3"),
        ([*TABLE, TABLE[0]], "two wrong answers are rejected for the same reason"),
        ([*TABLE, wrong("", "d", ("x", "y"))], "'x' occurs 5 times, not once"),
        ([*TABLE, wrong("", "d", ("return x\n", ""))], "'return x\\n' occurs 0 times, not once"),
        ([*TABLE, wrong("", "d", ("", "y"))], "'' occurs 0 times, not once"),
        ([*TABLE, wrong("", "d", half="return x")], "no marks in half"),
        ([*TABLE, wrong("", "d", ("2 * x", "2 x"))], "invalid syntax"),
        ([*TABLE, wrong("", "d", ("2 * x", "2 * x"))], "It changes nothing"),
        ([*TABLE, wrong("", "", ("2 * x", "3 * x"))], "expects no words"),
    ],
)
def test_an_answer_that_does_not_fit_is_found(answers: list[Answer], expected: str | None):
    problems = table_problems("90_small", answers, SMALL)
    assert [expected] == [None] if not problems else expected in problems[0]


def test_an_answer_is_indented_as_the_solution_was():
    assert "    x += 1\n    return 0\n" in TABLE[1].text(SMALL)
    assert TABLE[2].text(SMALL).startswith("\ndef double(x):\n    return x\n\n\n")


@pytest.mark.slow
@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_stub_is_not_started(exercise: str, tmp_path: Path):
    done = judged(exercise, stub_of(solution_of(exercise)), 2, tmp_path)
    assert (done.returncode, done.stdout) == (0, announced(exercise, "not started") + "\n")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_solution_is_right(exercise: str, ranks: int, tmp_path: Path):
    done = judged(exercise, solution_of(exercise), ranks, tmp_path)
    assert done.returncode == 0, done.stdout
    assert announced(exercise, "right: ") in done.stdout
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("exercise", "answer"), WRONG, ids=lambda part: getattr(part, "what", part))
def test_a_wrong_answer_is_rejected_for_its_reason(exercise: str, answer: Answer, tmp_path: Path):
    hangs = any(words in answer.told for words in OF_A_HANG)
    patience = {"PATIENCE_S": "10"} if hangs else {}
    done = judged(exercise, answer.text(solution_of(exercise)), 3, tmp_path, **patience)
    assert done.returncode == 1, done.stdout
    assert answer.told in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("exercise", "answer"), RIGHT, ids=lambda part: getattr(part, "what", part))
def test_a_right_answer_may_look_unusual(exercise: str, answer: Answer, tmp_path: Path):
    done = judged(exercise, answer.text(solution_of(exercise)), 3, tmp_path)
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
    assert solution.count(line) == 1
    text = solution.replace(line, f"    {ending}\n{line}")
    text = f"{text}\n\nimport ctypes, os, sys\n"
    done = judged("06_uneven_average", text, 2, tmp_path, PATIENCE_S="3")
    assert done.returncode == 1
    assert f"[rank 1] Exercise 06 uneven average: {ENDINGS[ending]}" in done.stdout


@pytest.mark.slow
def test_a_slow_rank_does_not_change_what_is_wrong(tmp_path: Path):
    exercise, line = "23_batching_server", '        server = rpc.rpc_sync("worker0", held)\n'
    told = "round 1: 4 of 4 calls were not answered within 5 s"
    (waits,) = [answer for answer in answers_of(exercise) if answer.told == told]
    answer = tmp_path / "exercise.py"
    answer.write_text(waits.text(solution_of(exercise)), encoding="utf-8")
    text = check_of(exercise).read_text(encoding="utf-8")
    assert line in text
    slow = tmp_path / "check.py"  # rank 1 asks for the server when the others' calls could hold its threads
    slow.write_text(text.replace(line, f"        time.sleep(group.rank % 2)\n{line}"), encoding="utf-8")
    done = run_job(Job(slow, ("--answer", answer), ranks=3))
    assert done.returncode == 1
    assert told in done.stdout


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
