"""The replay of a lab in a cell, and that of an answer to an exercise in the case that fails."""

import json
import re
from pathlib import Path

import pytest

from shared.runtime import replay
from shared.runtime.errors import CourseError
from tests.helpers import LABS, Done, python
from tests.planted import answers_of, solution_of

FAILS = 'import sys\nprint("why it fails")\nsys.exit(7)\n'


def test_a_lab_that_is_not_written_yet():
    with pytest.raises(CourseError, match="there is no lab lab_99_gone: run the cell that writes"):
        replay.show("lab_99_gone", 2)


@pytest.mark.slow
def test_a_lab_is_shown_as_page_and_picture(monkeypatch: pytest.MonkeyPatch):
    shown: list = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    replay.show("lab_00_hello", 2)
    page, picture = (output._repr_mimebundle_() for output in shown)
    assert page["text/plain"] == "Replay of lab_00_hello.py on 2 ranks"
    assert page["text/html"].startswith("<iframe srcdoc=")
    assert "all_reduce" in page["text/html"]
    assert picture["image/svg+xml"].startswith("<svg")


@pytest.mark.slow
def test_a_lab_that_fails_is_told(tmp_path: Path):
    script = tmp_path / "lab.py"
    script.write_text(FAILS, encoding="utf-8")
    with pytest.raises(CourseError, match=r"(?s)exit code 1:.*why it fails"):
        replay.recorded(script, 1, (), None)


def replay_of(exercise: str, what: str, folder: Path) -> tuple[Done, Path]:
    """The check with ``--replay`` of the answer that is called so; without a name, of the solution."""
    text = solution_of(exercise)
    for answer in answers_of(exercise):
        text = answer.text(text) if answer.what == what else text
    answer = folder / "exercise.py"
    answer.write_text(text, encoding="utf-8")
    done = python(LABS / f"lesson_{exercise[:2]}" / "check.py", "--answer", answer, "--replay")
    return done, folder / "exercise.replay.html"


def data_in(page: Path) -> dict:
    text = page.read_text(encoding="utf-8")
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', text)[1])


@pytest.mark.slow
def test_a_wrong_answer_is_shown_in_the_case_that_fails(tmp_path: Path):
    done, page = replay_of("05_reduce_scatter", "Counts the ranks of this run by hand.", tmp_path)
    assert done.returncode == 1, done.stdout
    assert "exercise.replay.html in a browser" in done.stdout
    data = data_in(page)
    assert any("on 2 of the 3 ranks" in note for note in data["notes"])
    assert [file["name"] for file in data["files"]] == ["exercise.py"]
    assert {lane["rank"] for lane in data["lanes"]} == {0, 1}  # right on three ranks: that is forgotten
    assert {call["name"] for call in data["calls"]} == {"send", "recv"}
    assert "--replay" not in done.stdout  # who looks at it needs no advice


@pytest.mark.slow
def test_a_stuck_answer_is_shown_where_it_waits(tmp_path: Path):
    done, page = replay_of("03_exchange", "All ranks send first.", tmp_path)
    assert done.returncode == 1, done.stdout
    data = data_in(page)
    assert any("stuck: it waited" in note for note in data["notes"])
    assert "rank 0 waits in send to rank 1, number 1, for rank 1" in data["notes"]


@pytest.mark.slow
def test_a_right_answer_has_no_page_and_keeps_the_old_one(tmp_path: Path):
    (tmp_path / "exercise.replay.html").write_text("mine", encoding="utf-8")
    done, page = replay_of("05_reduce_scatter", "", tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "No case fails: there is nothing to replay."
    assert page.read_text(encoding="utf-8") == "mine"


@pytest.mark.slow
def test_a_fault_of_the_recorder_is_no_fault_of_the_answer(tmp_path: Path):
    answer = tmp_path / "exercise.py"
    answer.write_text("import torch.distributed\nraise ValueError('mine')\n", encoding="utf-8")
    check = LABS / "lesson_05" / "check.py"
    done = python(check, "--answer", answer, "--replay")
    assert done.returncode == 1
    assert "exercise.py cannot be imported: ValueError: mine" in done.stdout
    assert list(tmp_path.iterdir()) == [answer]


@pytest.mark.slow
def test_where_there_is_nothing_to_replay(tmp_path: Path):
    done, _ = replay_of("07_bytes", "", tmp_path)
    assert done.stdout == "exercise 07_bytes: its ranks do not communicate, so there is nothing to replay\n"
    done = python(LABS / "lesson_05" / "check.py", "--answer", tmp_path / "exercise.py", "--replay", RANK="0")
    assert "--replay starts the ranks itself, without torchrun: python " in done.stdout
