"""Lesson 26: the table of failures is that of the lesson, and each of its rows can be provoked again."""

import re
from pathlib import Path

import nbformat
import pytest

from shared.tools.lessons import cells_of
from tests.helpers import ROOT, python
from tests.rules.links import link_problems

TABLE = ROOT / "notebooks" / "failures.md"
NOTEBOOK = ROOT / "notebooks" / "26_when_it_hangs.ipynb"
GALLERY = ROOT / "labs" / "lab_26_gallery.py"
AT_LEAST = 35


def rows_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| `")]


def table_of_the_lesson() -> str:
    for cell in cells_of(nbformat.read(NOTEBOOK, 4), "code"):
        for output in cell.outputs:
            text = output.get("data", {}).get("text/markdown", "")
            if rows_of(text):
                return text
    raise AssertionError("no cell shows the table")


def test_the_file_and_the_lesson_have_the_same_table():
    assert table_of_the_lesson().strip() in TABLE.read_text(encoding="utf-8")


def test_there_are_enough_rows_and_each_has_a_case_and_a_lesson():
    rows = rows_of(TABLE.read_text(encoding="utf-8"))
    assert len(rows) >= AT_LEAST
    labs = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "labs").glob("lab_26_*.py"))
    for row in rows:
        _, *cells, _ = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)]
        assert len(cells) == 6, row
        assert f"def {cells[5].strip('`')}(" in labs, row
        assert re.fullmatch(r"\[(\d\d)\]\(\1_\w+\.ipynb\)", cells[4]), row
    assert link_problems(TABLE, ROOT) == []


@pytest.mark.slow
def test_each_row_is_provoked_again_and_says_the_same(tmp_path: Path):
    done = python(GALLERY, "--write", tmp_path / "failures.md")
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "failures.md").read_text(encoding="utf-8") == TABLE.read_text(encoding="utf-8")
