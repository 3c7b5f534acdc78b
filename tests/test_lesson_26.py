"""Lesson 26: each row of the table of failures can be provoked again, and says the same."""

import re
from pathlib import Path

import pytest

from tests.helpers import ROOT, python
from tests.rules.links import link_problems

TABLE = ROOT / "notebooks" / "failures.md"
GALLERY = ROOT / "shared" / "lesson_26"
AT_LEAST = 35


def rows_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| `")]


def test_there_are_enough_rows_and_each_has_a_case_and_a_lesson():
    rows = rows_of(TABLE.read_text(encoding="utf-8"))
    assert len(rows) >= AT_LEAST
    cases = "".join(path.read_text(encoding="utf-8") for path in GALLERY.glob("*.py"))
    for row in rows:
        _, *cells, _ = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)]
        assert len(cells) == 6, row
        assert f"def {cells[5].strip('`')}(" in cases, row
        assert re.fullmatch(r"\[(\d\d)\]\(\1_\w+\.ipynb\)", cells[4]), row
    assert link_problems(TABLE, ROOT) == []


@pytest.mark.slow
def test_each_row_is_provoked_again_and_says_the_same(tmp_path: Path):
    done = python("-m", "shared.lesson_26.gallery", "--write", tmp_path / "failures.md")
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "failures.md").read_text(encoding="utf-8") == TABLE.read_text(encoding="utf-8")
