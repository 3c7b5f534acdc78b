"""``replay.show``: a lab's page and picture in a cell, and one line where it cannot be."""

from pathlib import Path

import pytest

from shared.runtime import replay
from shared.runtime.errors import CourseError

FAILS = 'import sys\nprint("why it fails")\nsys.exit(7)\n'


def test_a_lab_that_is_not_written_yet():
    with pytest.raises(CourseError, match="there is no lab lab_99_gone: run the cell that writes"):
        replay.show("lab_99_gone", 2)


@pytest.mark.slow
def test_a_lab_is_shown_as_page_and_picture(monkeypatch: pytest.MonkeyPatch):
    shown: list = []
    monkeypatch.setattr(replay, "display", shown.append)
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
