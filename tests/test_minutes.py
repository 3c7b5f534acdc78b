"""Headers say how long a lesson takes, and no lesson is too long. The lessons that are stand in ``OVER``."""

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from shared.tools.lessons import Lesson, read_lessons
from shared.tools.minutes import OTHER_CELLS, coarse, effort_of, measured, read_times, time_problems
from shared.tools.sync import differences
from tests.mini_course import make_course, mini_notebook, write_lesson
from tests.rules import tell

MOST = {"words": 2500, "lines": 400, "reading": 60, "exercise": 30}
# {lesson: what it has too much of}. It may only shrink.
OVER = {
    "10": {"lines"},
}
LESSONS = read_lessons()


def too_much(lesson: Lesson, seconds: dict[str, int]) -> set[str]:
    effort = effort_of(lesson, seconds)
    return {name for name, most in MOST.items() if getattr(effort, name) > most}


def small_lesson(folder: Path, *cells: nbformat.NotebookNode) -> Lesson:
    """The small lesson with more cells before its exercise."""
    notebook = mini_notebook()
    notebook.cells[4:4] = cells
    (folder / "notebooks").mkdir(parents=True)
    return write_lesson(folder, notebook)


def test_no_lesson_is_too_long():
    times = read_times()
    too_long = {lesson.number: too_much(lesson, times.get(lesson.number, {})) for lesson in LESSONS}
    assert {number: names for number, names in too_long.items() if names} == OVER


def test_the_table_of_seconds_names_what_lessons_run():
    times = read_times()
    numbers = {lesson.number for lesson in LESSONS}
    tell(
        [
            *(f"there is no lesson {number}" for number in sorted(set(times) - numbers)),
            *(
                f"{lesson.path.name}: {problem}"
                for lesson in LESSONS
                for problem in time_problems(lesson, times.get(lesson.number, {}))
            ),
        ],
        cure="run `make refresh`",
    )


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (new_markdown_cell("word " * 2500), {"words"}),
        (new_markdown_cell("word " * 2400 + "![a](picture.png) <b> | --- |"), set()),
        (new_code_cell("x = 1\n" * 401), {"lines"}),
        (new_markdown_cell("```\n" + "x = 1\n" * 401 + "```"), {"lines"}),
        (new_markdown_cell('<pre class="diff">\n' + "+x = y + z\n" * 401 + "</pre>"), {"lines"}),
        (new_code_cell("%%writefile ../labs/lab_90_more.py\n" + "import shared\n" * 401), set()),
        (new_markdown_cell("**Exercise 90** · hard · 31 min. Do more."), {"exercise"}),
        (new_markdown_cell("## Your turn\n\n" + "word " * 2500), set()),
    ],
)
def test_a_lesson_that_is_too_long_is_found(cell: nbformat.NotebookNode, expected: set[str], tmp_path: Path):
    assert too_much(small_lesson(tmp_path, cell), {}) == expected


def test_minutes_are_those_of_prose_open_code_and_runs(tmp_path: Path):
    prose = new_markdown_cell("word " * 1000)
    code = new_code_cell("x = 1\n" * 400)
    lesson = small_lesson(tmp_path, prose, code)
    assert effort_of(lesson, {OTHER_CELLS: 300, "lab_90_small": 300}).reading == 25  # 5 + 10 + 10
    assert effort_of(lesson, {}).exercise == 5


def test_a_header_with_other_minutes_is_found(tmp_path: Path):
    course = make_course(tmp_path / "course")
    assert differences(course) == {}
    path = course / "notebooks/90_small.ipynb"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("5 min + 5 min exercise", "10 min + 5 min exercise"), encoding="utf-8")
    assert differences(course) == {path: "differs from its source"}


def test_a_lab_without_a_time_is_found(tmp_path: Path):
    lesson = small_lesson(tmp_path, new_code_cell("!python ../labs/lab_90_small.py"))
    assert time_problems(lesson, {OTHER_CELLS: 3, "lab_90_small": 5}) == []
    assert "does not say how long lab_90_small" in time_problems(lesson, {OTHER_CELLS: 3})[0]
    assert (
        "does not run lab_90_gone"
        in time_problems(lesson, {OTHER_CELLS: 3, "lab_90_small": 5, "lab_90_gone": 2})[0]
    )


@pytest.mark.parametrize(
    ("known", "busy", "taken", "expected"),
    [
        ({}, False, 9.0, 8),
        ({}, True, 9.0, 8),
        ({"lab_90_small": 8}, False, 11.0, 8),
        ({"lab_90_small": 8}, False, 40.0, 45),
        ({"lab_90_small": 8}, True, 40.0, 8),
    ],
)
def test_a_time_is_replaced_when_it_is_far_off(
    known: dict[str, int], busy: bool, taken: float, expected: int, tmp_path: Path
):
    lesson = small_lesson(tmp_path, new_code_cell("!python ../labs/lab_90_small.py"))
    each = [taken if "!python" in cell.source else 0.1 for cell in lesson.notebook.cells]
    assert measured(lesson, each, known, busy) == {OTHER_CELLS: coarse(0.1), "lab_90_small": expected}
