"""The authors' tools: what a digest covers, how a stub is made, how all lessons are run."""

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from shared.runtime.stubs import stub_of
from shared.tools.lessons import Lesson, imported_modules, inputs_digest
from shared.tools.refresh import is_fresh
from tests.helpers import python
from tests.test_red_when_wrong import NO_WORDS
from tests.test_sync import make_course, mini_notebook, write_lesson

TORCHRUN = "!torchrun --standalone --nproc-per-node={WORLD_SIZE} ../labs"


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """One lesson, whose labs come from a cell and from the hands of an author."""
    root = make_course(tmp_path / "course")
    (root / "labs" / "lesson_90" / "check.py").write_text(
        "from shared.training import data\n", encoding="utf-8"
    )
    return root


def lesson_of(
    course: Path, change: Callable[[nbformat.NotebookNode], None] = lambda notebook: None
) -> Lesson:
    notebook = mini_notebook()
    notebook.cells.append(new_code_cell(f"{TORCHRUN}/lab_90_small.py\n{TORCHRUN}/lesson_90/check.py"))
    change(notebook)
    return write_lesson(course, notebook)


COUNT = (
    "shared/runtime/group.py",  # the lab imports it
    "shared/runtime/errors.py",  # shared/runtime/group.py imports it
    "shared/runtime/notebook.py",  # a cell imports it
    "shared/training/data.py",  # the check imports it
    "labs/lesson_90/check.py",
    "labs/lab_90_small.py",
)
DO_NOT_COUNT = ("shared/comm/kernel.py", "labs/lesson_90/solution.py")


def test_a_change_of_what_a_lesson_runs_makes_it_stale_and_no_other(course: Path):
    digests = [inputs_digest(lesson_of(course), course)]
    for name in COUNT + DO_NOT_COUNT:
        with (course / name).open("a", encoding="utf-8") as file:
            file.write("# changed\n")
        digests.append(inputs_digest(lesson_of(course), course))
    *changed, last = digests[: len(COUNT) + 1]
    assert len({*changed, last}) == len(COUNT) + 1
    assert digests[len(COUNT) + 1 :] == [last] * len(DO_NOT_COUNT)


def test_code_counts_and_prose_does_not(course: Path):
    before = inputs_digest(lesson_of(course), course)
    prose = lesson_of(course, lambda notebook: notebook.cells.append(new_markdown_cell("More.")))
    assert inputs_digest(prose, course) == before
    code = lesson_of(course, lambda notebook: notebook.cells.append(new_code_cell("1")))
    assert inputs_digest(code, course) != before


def test_a_lesson_is_fresh_while_its_digest_is_that_of_its_run(course: Path):
    lesson = lesson_of(course)
    assert not is_fresh(lesson, course)
    lesson.notebook.metadata["rank_by_rank"] = {"inputs": inputs_digest(lesson, course)}
    assert is_fresh(lesson, course)
    lesson.notebook.cells[-1].source += " "
    assert not is_fresh(lesson, course)


def test_imports_are_found_in_each_form():
    source = (
        "import shared.a, os\nfrom shared import b\nfrom shared.c import d\nfrom .f import g\nimport torch\n"
    )
    absolute = {"shared", "shared.a", "shared.b", "shared.c", "shared.c.d"}
    expected = absolute | {"shared.room.f", "shared.room.f.g"}
    assert imported_modules(source, "shared.room") == expected


def test_each_marked_block_becomes_one_line():
    solution = (
        "a\n    # solution: begin\n    b\n    c\n    # solution: end\nd\n# solution: begin\n# solution: end\n"
    )
    todo = "raise NotImplementedError  # your turn: replace this line"
    assert stub_of(solution) == f"a\n    {todo}\nd\n{todo}\n"


def test_a_stub_may_be_what_was_found():
    solution = "a\n# solution: begin\nb\n# solution: found\n# if c:\n#     d  # note\n# solution: end\ne\n"
    assert stub_of(solution) == "a\nif c:\n    d  # note\ne\n"
    assert stub_of("a\n    # solution: begin\n    b\n    # solution: found\n    # solution: end\n") == "a\n"


@pytest.mark.slow
def test_make_run_ends_in_a_table(tmp_path: Path):
    root = make_course(tmp_path / "course", "90", "91")
    red = mini_notebook("91")
    red.cells.append(new_code_cell("!false"))
    write_lesson(root, red, "91")
    done = python("-m", "shared.tools.run_all", "--world-size", "3", root=root, cwd=root)
    assert done.returncode == 1
    table = [line.split(maxsplit=2) for line in done.stdout.splitlines() if line.startswith("9")]
    assert [(name, state) for name, _, state in table] == [
        ("90_small", "green"),
        ("91_small", f"red: the command above failed with exit code 1: {NO_WORDS}"),
    ]
    told = done.stdout.splitlines()[-1]
    assert told.startswith("1 green, 1 red; executed copies are in runs/lessons-")
    executed = nbformat.read(root / told.rpartition(" ")[2] / "90_small.ipynb", 4)
    assert "WORLD_SIZE = 3" in [cell.source.splitlines()[-1] for cell in executed.cells]
