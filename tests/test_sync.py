"""``make sync``: the side that has changed counts, nothing is lost, each derived file equals its source."""

import re
import subprocess
from pathlib import Path
from shutil import copytree, ignore_patterns

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from shared.runtime.errors import InputError
from shared.runtime.stubs import stub_of
from shared.tools import sync
from shared.tools.lessons import OTHER_KINDS, Lesson, inputs_digest, read_lesson, read_lessons
from shared.tools.outputs import clean
from shared.tools.sync import answers, derived_files, differences, reconcile, write_all
from tests.helpers import ROOT, python
from tests.rules.cells import SET_UP

LAB = "labs/lab_90_small.py"
NOTEBOOK = "notebooks/90_small.ipynb"
IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@example.org")


HEADER = """# {number} · A small lesson

**What does it show?** It shows what a test needs.

Builds on nothing · 5 min + 5 min exercise · 2 CPU ranks · GPU: not needed
"""
TEXT_OF_LAB = '''"""A lab of the tests.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_{number}_small.py
Written by:  notebooks/{number}_small.ipynb (edit it there)
"""

from shared.runtime.group import process_group
from shared.runtime.run import run


def main() -> None:
    with process_group(report=False):
        pass


if __name__ == "__main__":
    run(main)
'''
SOLUTION = '''"""Exercise {number}: the answer."""


def answer() -> int:
    """Return the answer."""
    # solution: begin
    return 42
    # solution: end
'''


def mini_notebook(number: str = "90") -> nbformat.NotebookNode:
    """A lesson with each section, one lab and one exercise."""
    stub = stub_of(SOLUTION.format(number=number)).rstrip()
    lab = TEXT_OF_LAB.format(number=number).rstrip()
    cells = [
        new_markdown_cell(HEADER.format(number=number)),
        new_code_cell(SET_UP),
        new_code_cell("WORLD_SIZE = 2", metadata={"tags": ["parameters"]}),
        new_markdown_cell("The lab proves nothing."),
        new_code_cell(f"%%writefile ../labs/lab_{number}_small.py\n{lab}"),
        new_code_cell(f"%%writefile ../labs/lesson_{number}/exercise.py\n{stub}"),
        new_code_cell('print("two", 2)'),
        new_markdown_cell("## You did\n\nA sentence."),
    ]
    notebook = new_notebook(cells=cells)
    clean(notebook)
    return notebook


def write_lesson(root: Path, notebook: nbformat.NotebookNode, number: str = "90") -> Lesson:
    path = root / "notebooks" / f"{number}_small.ipynb"
    path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    return read_lesson(path, root)


def make_course(root: Path, *numbers: str) -> Path:
    """Write a course of small lessons, all of it in sync, into the new folder ``root``."""
    (root / "notebooks").mkdir(parents=True)
    copytree(ROOT / "shared", root / "shared", ignore=ignore_patterns("__pycache__"))
    for number in numbers or ("90",):
        solution = root / "labs" / f"lesson_{number}" / "solution.py"
        solution.parent.mkdir(parents=True)
        solution.write_text(SOLUTION.format(number=number), encoding="utf-8")
        write_lesson(root, mini_notebook(number), number)
    write_all(read_lessons(root), root)
    return root


@pytest.fixture
def course(tmp_path: Path) -> Path:
    return make_course(tmp_path / "course", "90", "91")


@pytest.fixture
def repository(course: Path) -> Path:
    """The course with a first commit."""
    for command in (["init", "-q"], ["add", "-A"], [*IDENTITY, "commit", "-qm", "first"]):
        subprocess.run(["git", *command], cwd=course, check=True)
    return course


def found_in(course: Path) -> dict[str, str]:
    return {
        path.relative_to(course).as_posix(): what
        for path, what in differences(derived_files(read_lessons(course), course)).items()
    }


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_each_lab_has_one_owner():
    labs = [path for kind in ("py", *OTHER_KINDS) for path in (ROOT / "labs").glob(f"lab_*.{kind}")]
    written = [name for lesson in read_lessons() for name in [*lesson.labs, *lesson.other_files]]
    assert sorted(path.relative_to(ROOT).as_posix() for path in labs) == sorted(written)


def test_the_side_that_has_changed_counts(repository: Path):
    edit(repository / LAB, "report=False", "report=True")  # the file
    edit(repository / "notebooks/91_small.ipynb", "report=False", "report=True")  # the cell
    lessons = read_lessons(repository)
    reconcile(lessons, repository)
    write_all(lessons, repository)
    assert found_in(repository) == {}
    assert "report=True" in (repository / NOTEBOOK).read_text(encoding="utf-8")
    assert "report=True" in (repository / "labs/lab_91_small.py").read_text(encoding="utf-8")


def test_where_both_sides_have_changed_they_are_named_and_nothing_is_written(repository: Path):
    edit(repository / LAB, "report=False", "report=True")
    edit(repository / NOTEBOOK, "report=False", "report=None")
    edit(repository / "labs/lab_91_small.py", "report=False", "report=True")
    before = {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=f"{LAB} and its cell in 90_small.ipynb") as told:
        reconcile(read_lessons(repository), repository)
    assert "lab_91_small" not in str(told.value)
    assert {path: path.read_bytes() for path in before} == before


def test_without_a_commit_nobody_knows_which_side_has_changed(course: Path):
    edit(course / LAB, "report=False", "report=True")
    with pytest.raises(InputError, match=LAB):
        reconcile(read_lessons(course), course)
    assert "report=True" in (course / LAB).read_text(encoding="utf-8")


def test_a_stub_follows_its_solution_and_an_answer_stays(repository: Path):
    edit(repository / NOTEBOOK, "raise NotImplementedError  # your turn: replace this line", "return 6 * 7")
    for number in ("90", "91"):
        edit(repository / f"labs/lesson_{number}/solution.py", "Return the", "Return this")
    write_all(read_lessons(repository), repository)
    first, second = read_lessons(repository)
    assert (len(answers(first, repository)), answers(second, repository)) == (1, [])
    assert "return 6 * 7" in (repository / NOTEBOOK).read_text(encoding="utf-8")
    assert "Return this answer" in (repository / "notebooks/91_small.ipynb").read_text(encoding="utf-8")
    assert found_in(repository) == {}


def test_an_emptied_cell_gets_its_stub_again(course: Path):
    notebook = nbformat.read(course / NOTEBOOK, 4)
    (cell,) = [cell for cell in notebook.cells if "exercise.py" in cell.source]
    stub = cell.source
    cell.source = stub.splitlines()[0]
    nbformat.write(notebook, course / NOTEBOOK)
    write_all(read_lessons(course), course)
    assert stub in [cell.source for cell in nbformat.read(course / NOTEBOOK, 4).cells]


def test_what_differs_is_found(course: Path):
    assert found_in(course) == {}
    (course / "labs" / "lab_99_orphan.py").write_text("", encoding="utf-8")
    edit(course / LAB, "report=False", "report=True")
    (course / "labs" / "lab_91_small.py").unlink()
    edit(course / NOTEBOOK, "# 90 · A small lesson", "# 90 · A smaller lesson")
    assert found_in(course) == {
        "labs/lab_99_orphan.py": "no notebook writes it",
        LAB: "differs from its source",
        "labs/lab_91_small.py": "is missing",
        "notebooks/91_small.ipynb": "differs from its source",  # it links to lesson 90
    }


def test_what_a_cell_shows_in_the_readme_is_kept_up_to_date(course: Path):
    notebook = nbformat.read(course / NOTEBOOK, 4)
    cell = next(cell for cell in notebook.cells if cell.cell_type == "code")
    cell.metadata["tags"] = ["readme:small"]
    cell.outputs = [new_output("display_data", {"text/markdown": "| a |", "image/png": "UE5H"})]
    (course / NOTEBOOK).write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    readme = course / "README.md"
    mark = "<!-- {}: written by `make sync` -->\nstale\n<!-- {}: end -->\n"
    readme.write_text(mark.format("small", "small") + mark.format("lessons", "lessons"), encoding="utf-8")
    assert set(found_in(course)) == {"README.md", "notebooks/images/small.png"}
    write_all(read_lessons(course), course)
    assert readme.read_text(encoding="utf-8").splitlines()[1] == "| a |"
    assert "[A small lesson](notebooks/90_small.ipynb)" in readme.read_text(encoding="utf-8")
    assert (course / "notebooks/images/small.png").read_bytes() == b"PNG"
    assert found_in(course) == {}


def test_two_cells_may_not_write_one_file(course: Path):
    edit(course / "notebooks/91_small.ipynb", "../labs/lab_91_small.py", f"../{LAB}")
    with pytest.raises(InputError, match="is written by 90_small.ipynb and by 91_small.ipynb"):
        read_lessons(course)
    edit(course / NOTEBOOK, "../labs/lesson_90/exercise.py", f"../{LAB}")
    with pytest.raises(InputError, match=f"{LAB} is written twice"):
        read_lessons(course)


def test_a_job_script_is_written_by_a_cell_but_is_no_lab(course: Path):
    notebook = nbformat.read(course / NOTEBOOK, 4)
    cell = new_code_cell("%%writefile ../labs/lab_90_small.sbatch\n#!/bin/bash\nfor i in 1")
    notebook.cells.insert(-1, cell)
    (course / NOTEBOOK).write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    write_all(read_lessons(course), course)
    assert (course / "labs/lab_90_small.sbatch").read_text(encoding="utf-8") == "#!/bin/bash\nfor i in 1\n"
    (lesson, *_) = read_lessons(course)
    assert (lesson.labs, lesson.other_files) == ([LAB], ["labs/lab_90_small.sbatch"])
    assert len(inputs_digest(lesson, course)) == 16


@pytest.mark.slow
def test_make_sync_formats_labs_and_runs_nothing(repository: Path):
    notebook = nbformat.read(repository / NOTEBOOK, 4)
    notebook.cells[-2].source = 'raise SystemExit("a cell was run")'
    (repository / NOTEBOOK).write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    with (repository / LAB).open("a", encoding="utf-8") as file:
        file.write("x=1\n")
    done = python("-m", "shared.tools.sync", root=repository, cwd=repository)
    assert done.returncode == 0, done.stdout
    assert "x = 1" in (repository / LAB).read_text(encoding="utf-8")
    assert "x = 1" in (repository / NOTEBOOK).read_text(encoding="utf-8")
    checked = python("-m", "shared.tools.sync", "--check", root=repository, cwd=repository)
    assert (checked.returncode, checked.stdout) == (0, "")


STANDS_ALONE = {
    "With p ranks and m micro-batches, what share of the step is idle?": True,
    "Does 1F1B shrink the bubble?": True,
    "An error, a hang, or a result?": False,
    "Which ranks run on A?": False,
    "Which all-reduce of the last rank does theirs meet?": False,
    "With one such queue on each rank, which cure fails: order, `isend` or a batch?": False,
}


def test_a_question_that_needs_its_cell_is_left_out():
    for question, alone in STANDS_ALONE.items():
        assert sync.stands_alone(question, "<details><summary>Answer</summary>\n\nYes.") == alone, question
    question = next(iter(STANDS_ALONE))
    for answer in ("The run above printed both.", "The lab raises an error.", "The second."):
        assert not sync.stands_alone(question, f"<details><summary>Answer</summary>\n\n{answer}")


def test_what_the_page_asks_first_is_still_a_prediction_of_a_lesson():
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "notebooks").glob("*.ipynb")]
    for question in sync.ASKED_FIRST:
        assert sum(question in text for text in texts) == 1, question


def test_interviewers_questions_come_first_each_with_three_sentences_a_number_and_a_lesson():
    page = (ROOT / "notebooks" / "questions.md").read_text(encoding="utf-8")
    first = page.partition("<!-- questions")[0]
    answers = re.findall(r"</summary>\n\n(.+?) \[Lesson (\d\d)\]\(\2_\w+\.ipynb\)\.\n", first)
    assert len(answers) == first.count("<summary>") == 25
    for answer, _ in answers:
        assert len(re.findall(r"[.!?](?= [A-Z]|$)", answer)) == 3, answer
        assert re.search(r"\d", answer), answer
