"""Each lesson begins alike, starts processes by ``!`` alone, and its links lead somewhere."""

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_markdown_cell

from shared.tools.lessons import read_lessons
from tests.helpers import LESSON_PATHS, ROOT
from tests.rules import cells, tell
from tests.rules.links import link_problems

pytestmark = pytest.mark.author
RULES = (cells.set_up_problems, cells.image_problems, cells.starting_problems)


def test_lessons_keep_the_rules():
    problems = []
    for lesson in read_lessons():
        for rule in RULES:
            problems += [f"{lesson.path.name}: {problem}" for problem in rule(lesson.notebook)]
        if lesson.header["number"] != lesson.number:
            problems.append(f"{lesson.path.name} has another number in its header")
    tell(problems)


def test_links_lead_somewhere():
    tell(problem for path in (*LESSON_PATHS, *ROOT.glob("*.md")) for problem in link_problems(path, ROOT))


@pytest.mark.parametrize(
    ("link", "expected"),
    {
        "[a](missing.md)": "which does not exist",
        "[a](/etc/hostname)": "which is outside of the course",
        "[a](#No-such-heading)": "there is no such heading",
    }.items(),
)
def test_a_dead_link_is_found(link: str, expected: str, tmp_path: Path):
    path = tmp_path / "90_small.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[new_markdown_cell(link)]), path)
    assert [problem.endswith(expected) for problem in link_problems(path, tmp_path)] == [True]
