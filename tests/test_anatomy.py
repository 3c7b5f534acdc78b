"""Each lesson is built alike; each rule finds the fault that it is there for."""

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from shared.runtime.errors import InputError
from shared.tools.lessons import read_lesson, read_lessons
from tests.helpers import LESSON_PATHS, ROOT
from tests.mini_course import mini_notebook
from tests.rules import cells, tell
from tests.rules.links import link_problems

RULES = (
    cells.section_problems,
    cells.set_up_problems,
    cells.length_problems,
    cells.folded_problems,
    cells.image_problems,
    cells.starting_problems,
    cells.brace_problems,
)
LESSONS = read_lessons()
IMAGE = "![{}](../README.md)"


def code(source: str) -> Callable[[nbformat.NotebookNode], None]:
    return lambda notebook: notebook.cells.append(new_code_cell(source))


def markdown(source: str) -> Callable[[nbformat.NotebookNode], None]:
    return lambda notebook: notebook.cells.append(new_markdown_cell(source))


def edited(index: int, old: str, new: str) -> Callable[[nbformat.NotebookNode], None]:
    def edit(notebook: nbformat.NotebookNode) -> None:
        assert old in notebook.cells[index].source
        notebook.cells[index].source = notebook.cells[index].source.replace(old, new)

    return edit


def untagged(notebook: nbformat.NotebookNode) -> None:
    notebook.cells[2].metadata = {}


def swapped(notebook: nbformat.NotebookNode) -> None:
    notebook.cells[3].source, notebook.cells[4].source = notebook.cells[4].source, notebook.cells[3].source


PLANTED = {
    "a missing section": (edited(-1, "You did", "The end"), "there is no section 'You did'"),
    "two swapped sections": (swapped, "section 'The lab' stands too early"),
    "a longer set-up": (edited(1, "\n\n", "\nimport os\n"), "the first code cell is not the set-up"),
    "no tag": (untagged, "the second code cell is not tagged"),
    "no WORLD_SIZE": (edited(2, "WORLD_SIZE", "SIZE"), "does not set WORLD_SIZE"),
    "a long cell": (code("1\n" * 26), "has 26 lines"),
    "a folded lab of which nothing is said": (edited(-6, "Folded: ", ""), "above ../labs/lab_90_small.py"),
    "an image without text": (markdown(IMAGE.format("")), "an image has no alt text"),
    "an html image without text": (markdown("<img src='x.png' alt=''>"), "an image has no alt text"),
    "subprocess": (code("import subprocess"), "a cell uses subprocess"),
    "multiprocessing": (code("from torch import multiprocessing"), "a cell uses torch.multiprocessing"),
    "os.system": (code("import os\nos.system('true')"), "a cell uses os.system"),
    "bash": (code("%%bash\ntrue"), "a cell uses %bash"),
    "an unknown brace": (code("!echo {UNKNOWN}"), "{UNKNOWN} in `!echo {UNKNOWN}`"),
    "a shell variable": (code("out = !echo ${HOME}"), "${HOME} in"),
    "a brace on a continued line": (code("!echo \\\n  {2 + 2}"), "{2 + 2} in"),
}
ALLOWED = (
    code("W = 1\n!echo {W} ; echo $?"),
    markdown("## And more\n\ntext"),
    markdown(IMAGE.format("a ring")),
    code("%%writefile ../labs/lab_90_long.py\n" + "1\n" * 40),
    code('print(f"{1 + 1}", {"a": 1})'),
    markdown("```\n## You will\n```"),
)


def test_lessons_keep_the_rules():
    problems = []
    for lesson in LESSONS:
        for rule in RULES:
            problems += [f"{lesson.path.name}: {problem}" for problem in rule(lesson.notebook)]
    tell(problems)


def test_what_is_allowed_is_not_complained_about():
    notebook = mini_notebook()
    for add in ALLOWED:
        add(notebook)
    assert [problem for rule in RULES for problem in rule(notebook)] == []


@pytest.mark.parametrize(("plant", "expected"), PLANTED.values(), ids=PLANTED)
def test_a_broken_rule_is_found(plant: Callable, expected: str):
    notebook = mini_notebook()
    plant(notebook)
    problems = [problem for rule in RULES for problem in rule(notebook)]
    assert len(problems) == 1
    assert expected in problems[0]


def test_there_are_lessons_and_they_are_numbered_once():
    numbers = [path.name[:2] for path in LESSON_PATHS]
    assert numbers
    assert len(set(numbers)) == len(numbers)


def test_headers_bear_the_number_of_their_file():
    tell(lesson.path.name for lesson in LESSONS if lesson.header["number"] != lesson.number)


def test_a_header_of_another_form_is_found(tmp_path: Path):
    notebook = mini_notebook()
    edited(0, "5 min +", "some minutes")(notebook)
    path = tmp_path / "90_small.ipynb"
    nbformat.write(notebook, path)
    with pytest.raises(InputError, match="not a header"):
        read_lesson(path, tmp_path)


def test_links_lead_somewhere():
    tell(problem for path in (*LESSON_PATHS, *ROOT.glob("*.md")) for problem in link_problems(path, ROOT))


@pytest.mark.parametrize(
    ("link", "expected"),
    {
        "[a](missing.md)": "which does not exist",
        "[a](/etc/hostname)": "which is outside of the course",
        "[a](#No-such-heading)": "there is no such heading",
        "[a](other.md#nothing)": "there is no such heading",
        "<img src='missing.png' alt='a'>": "which does not exist",
    }.items(),
)
def test_a_dead_link_is_found(link: str, expected: str, tmp_path: Path):
    good = "[a](other.md#ein-über-blick) [b](#Here-we-are) [c](https://example.org/x) `[d](e)`"
    (tmp_path / "other.md").write_text("# Ein *Über* Blick!\n", encoding="utf-8")
    path = tmp_path / "90_small.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[new_markdown_cell(f"# Here we are\n{good}")]), path)
    assert link_problems(path, tmp_path) == []
    nbformat.write(nbformat.v4.new_notebook(cells=[new_markdown_cell(link)]), path)
    assert [problem.endswith(expected) for problem in link_problems(path, tmp_path)] == [True]
