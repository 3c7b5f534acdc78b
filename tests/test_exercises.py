"""Stubs are not started, solutions are accepted, and each typical wrong answer is told what is wrong."""

import functools
import subprocess
import tempfile
from pathlib import Path

import pytest

from shared.tools.sync import stub_of
from tests.helpers import EXERCISE_FOLDER, EXERCISES, SCRIPTS, Done, torchrun
from tests.rules.labs import REJECTED

pytestmark = pytest.mark.slow

ANSWERS = sorted(EXERCISE_FOLDER.glob("*/wrong_answers/*.py"))


def check_of(exercise: str) -> Path:
    return EXERCISE_FOLDER / exercise / "check.py"


def check(exercise: str, answer: Path, ranks: int) -> Done:
    return torchrun(check_of(exercise), "--answer", answer, ranks=ranks)


def exercise_of(wrong_answer: Path) -> str:
    return wrong_answer.parents[1].name


def solution(exercise: str) -> Path:
    return EXERCISE_FOLDER / exercise / "solution.py"


@functools.cache
def tried(exercise: str, ranks: int) -> dict[Path, Done] | Exception:
    """What ``all_answers`` returns or raises: once, for a check that hangs would hang for each answer."""
    try:
        return all_answers(exercise, ranks)
    except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
        return error


def checked(exercise: str, ranks: int) -> dict[Path, Done]:
    if isinstance(found := tried(exercise, ranks), Exception):
        raise found
    return found


def all_answers(exercise: str, ranks: int) -> dict[Path, Done]:
    """{answer: how its check ended} for the solution, with 2 ranks the stub, with 3 all wrong answers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stub = folder / "stub.py"
        stub.write_text(stub_of(solution(exercise).read_text(encoding="utf-8")), encoding="utf-8")
        more = {2: [stub], 3: [answer for answer in ANSWERS if exercise_of(answer) == exercise], 4: []}[ranks]
        answers = [solution(exercise), *more]
        run = torchrun(SCRIPTS / "answers.py", check_of(exercise), folder, *answers, ranks=ranks)
        assert run.returncode == 0, run.stdout
        ends = {}
        for index, answer in enumerate(answers):
            said = [(folder / f"{index}.{rank}.txt").read_text(encoding="utf-8") for rank in range(ranks)]
            codes = {int((folder / f"{index}.{rank}.code").read_text()) for rank in range(ranks)}
            # A rank may be told so late that it leaves with an error of its own: any red rank makes it red.
            ends[Path(answer.name) if answer == stub else answer] = Done(
                [], max(codes, key=abs), "".join(said)
            )
    return ends


def announced(exercise: str, verdict: str) -> str:
    return f"Exercise {exercise.replace('_', ' ')}: {verdict}"


@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_stub_is_not_started(exercise: str):
    done = checked(exercise, 2)[Path("stub.py")]
    assert (done.returncode, done.stdout) == (0, announced(exercise, "not started") + "\n")


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_solution_is_right(exercise: str, ranks: int):
    done = checked(exercise, ranks)[solution(exercise)]
    assert done.returncode == 0, done.stdout
    assert announced(exercise, "right: ") in done.stdout
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda path: f"{exercise_of(path)}-{path.stem}")
def test_a_wrong_answer_is_rejected_for_its_reason(answer: Path):
    reason = answer.read_text(encoding="utf-8").splitlines()[0].removeprefix(REJECTED)
    done = checked(exercise_of(answer), 3)[answer]
    assert done.returncode == 1, done.stdout
    assert reason in done.stdout


def test_a_slow_rank_does_not_change_what_is_wrong(tmp_path: Path):
    exercise, line = "23_batching_server", '        server = rpc.rpc_sync("worker0", held)\n'
    text = check_of(exercise).read_text(encoding="utf-8")
    assert line in text
    slow = tmp_path / "check.py"  # rank 1 asks for the server when the others' calls could hold its threads
    slow.write_text(text.replace(line, f"        time.sleep(group.rank % 2)\n{line}"), encoding="utf-8")
    done = torchrun(slow, "--answer", EXERCISE_FOLDER / exercise / "wrong_answers" / "waits.py", ranks=3)
    assert done.returncode == 1
    assert "round 1: 4 of 4 calls were not answered within 5 s" in done.stdout


def test_a_missing_answer_is_told_in_one_line(tmp_path: Path):
    done = check(EXERCISES[0], tmp_path / "missing.py", ranks=2)
    first = done.stdout.splitlines()[0]
    assert done.returncode == 1
    assert first == f"exercise {EXERCISES[0]}: there is no file missing.py; run the cell that writes it"


def test_an_answer_that_cannot_be_imported_is_told_in_one_line(tmp_path: Path):
    broken = tmp_path / "broken.py"
    broken.write_text("def share_of(:\n", encoding="utf-8")
    done = check(EXERCISES[0], broken, ranks=2)
    assert done.returncode == 1
    assert done.stdout.startswith("broken.py cannot be imported: SyntaxError: ")
