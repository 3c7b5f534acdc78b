"""Answers of the old layout arrive in the rooms, byte for byte; nothing is overwritten."""

import hashlib
from pathlib import Path

import pytest

from shared.runtime.stubs import stub_of
from shared.tools.move_answers import move_answers

SOLUTION = "def f():\n    # solution: begin\n    return 1\n    # solution: end\n"
NAMES = ("00_shares", "05_reduce_scatter", "12_has_data", "27_sbatch")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digests(root: Path) -> list[str]:
    """Of all answers below ``root``, wherever they lie."""
    return sorted(
        digest(path.read_bytes()) for path in root.rglob("exercise.py*") if ".written" not in path.parts
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout in which four exercises were solved in the old layout."""
    for name in NAMES:
        old = tmp_path / "labs" / "exercises" / name
        (old / ".written").mkdir(parents=True)
        (old / ".written" / "exercise.py").write_text("a digest", encoding="utf-8")
        (old / "exercise.py").write_text(f"# {name}, my own  answer\n", encoding="utf-8")
        room = tmp_path / "labs" / f"lesson_{name[:2]}"
        room.mkdir()
        (room / "solution.py").write_text(SOLUTION, encoding="utf-8")
    return tmp_path


def test_answers_move_and_the_old_folder_goes(root: Path):
    before = digests(root)
    assert move_answers(root) == [f"lesson_{name[:2]}/exercise.py" for name in NAMES]
    assert digests(root) == before
    assert not (root / "labs" / "exercises").exists()
    assert move_answers(root) == []


def test_a_stub_in_the_room_gives_way_and_an_answer_stays(root: Path):
    rooms = [root / "labs" / f"lesson_{name[:2]}" / "exercise.py" for name in NAMES]
    rooms[0].write_text(stub_of(SOLUTION), encoding="utf-8")
    rooms[1].write_text("# a newer answer\n", encoding="utf-8")
    rooms[2].write_text("# 12_has_data, my own  answer\n", encoding="utf-8")
    answers = [(root / "labs" / "exercises" / name / "exercise.py").read_bytes() for name in NAMES]
    assert move_answers(root)[1] == "lesson_05/exercise.py.kept1"
    assert rooms[0].read_bytes() == answers[0]
    assert rooms[1].read_text(encoding="utf-8") == "# a newer answer\n"
    assert rooms[1].with_name("exercise.py.kept1").read_bytes() == answers[1]
    assert rooms[2].read_bytes() == answers[2]


def test_what_is_no_answer_stays_where_it_is(root: Path):
    notes = root / "labs" / "exercises" / "00_shares" / "notes.txt"
    notes.write_text("mine", encoding="utf-8")
    move_answers(root)
    assert notes.read_text(encoding="utf-8") == "mine"
