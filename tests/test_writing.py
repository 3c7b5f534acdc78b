"""``%%writefile`` of a lesson takes nothing away: answers stay, edited labs are kept."""

from pathlib import Path

import pytest

from shared.runtime.errors import InputError
from shared.runtime.stubs import stub_of
from shared.runtime.writing import write_cell

SOLUTION = "def answer():\n    # solution: begin\n    return 42\n    # solution: end\n"
STUB = stub_of(SOLUTION)
ANSWER = STUB.replace("raise NotImplementedError  # your turn: replace this line", "return 6 * 7")


@pytest.fixture
def exercise(tmp_path: Path) -> Path:
    (tmp_path / "solution.py").write_text(SOLUTION, encoding="utf-8")
    return tmp_path / "exercise.py"


def written(path: Path, *texts: str) -> list[str]:
    """What is said when cells with these texts run, one after the other."""
    return [write_cell(path, text).replace(path.parent.as_posix(), "labs") for text in texts]


def test_a_stub_is_written_once_and_again(exercise: Path):
    assert written(exercise, STUB, STUB) == ["Wrote labs/exercise.py"] * 2
    assert exercise.read_text(encoding="utf-8") == STUB


def test_a_stub_never_replaces_an_answer(exercise: Path):
    written(exercise, STUB)
    exercise.write_text(ANSWER, encoding="utf-8")
    told = written(exercise, STUB)
    assert told == [
        "labs/exercise.py holds your answer, which stays. To begin again, delete it and run this cell."
    ]
    assert exercise.read_text(encoding="utf-8") == ANSWER
    exercise.unlink()
    written(exercise, STUB)
    assert exercise.read_text(encoding="utf-8") == STUB


def test_an_answer_in_the_cell_is_written_as_often_as_it_changes(exercise: Path):
    versions = [STUB, ANSWER, ANSWER.replace("6 * 7", "42")]
    assert written(exercise, *versions) == ["Wrote labs/exercise.py"] * 3
    assert exercise.read_text(encoding="utf-8") == versions[-1]
    assert sorted(path.name for path in exercise.parent.glob("*.kept*")) == []


def test_a_lab_that_was_edited_by_hand_is_kept_and_named(tmp_path: Path):
    lab = tmp_path / "lab_90_small.py"
    written(lab, "x = 1\n")
    for edited in ("x = 2\n", "x = 3\n", "x = 2\n"):
        lab.write_text(edited, encoding="utf-8")
        (told,) = written(lab, "x = 1\n")
        kept = tmp_path / told.rpartition(" ")[2]
        assert told.startswith("Wrote labs/lab_90_small.py; it was edited before")
        assert kept.read_text(encoding="utf-8") == edited
        assert lab.read_text(encoding="utf-8") == "x = 1\n"
    assert len(list(tmp_path.glob("lab_90_small.py.kept*"))) == 2  # the same file is kept once


def test_a_lab_that_a_cell_wrote_is_not_kept(tmp_path: Path):
    lab = tmp_path / "lab_90_small.py"
    assert written(lab, "x = 1\n", "x = 2\n", "x = 1\n") == ["Wrote labs/lab_90_small.py"] * 3
    assert not list(tmp_path.glob("*.kept*"))


def test_a_missing_folder_is_told(tmp_path: Path):
    with pytest.raises(InputError, match="there is no folder"):
        write_cell(tmp_path / "nowhere" / "lab.py", "")
