"""Every derived file equals its source, and each way to break that is noticed."""

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_output

from shared.runtime.errors import InputError
from shared.tools.folding import is_folded
from shared.tools.lessons import OTHER_KINDS, cells_of, inputs_digest, read_lessons
from shared.tools.sync import derived_files, differences, write_all
from tests.helpers import ROOT, python
from tests.mini_course import make_course

LAB = "labs/lab_90_small.py"
NOTEBOOK = "notebooks/90_small.ipynb"


@pytest.fixture
def course(tmp_path: Path) -> Path:
    return make_course(tmp_path / "course", "90", "91")


def found_in(course: Path) -> dict[str, str]:
    return {path.relative_to(course).as_posix(): what for path, what in differences(course).items()}


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_each_lab_has_one_owner():
    kinds = [path for kind in ("py", *OTHER_KINDS) for path in (ROOT / "labs").glob(f"*.{kind}")]
    paths = [*kinds, *(ROOT / "labs").glob("exercises/*/exercise.py")]
    labs = {path.relative_to(ROOT).as_posix() for path in paths}
    written = [name for lesson in read_lessons() for name in lesson.written]
    assert sorted(labs) == sorted(written)


def test_a_course_in_sync_has_no_differences(course: Path):
    assert found_in(course) == {}
    assert len(derived_files(course)) == 6


def test_labs_that_differ_from_their_cells_are_found(course: Path):
    (course / "labs" / "lab_99_orphan.py").write_text("", encoding="utf-8")
    (course / "labs" / "lab_90_other.sbatch").write_text("#!/bin/bash\n", encoding="utf-8")
    edit(course / LAB, "report=False", "report=True")
    (course / "labs" / "lab_91_small.py").unlink()
    assert found_in(course) == {
        "labs/lab_99_orphan.py": "no notebook writes it",
        "labs/lab_90_other.sbatch": "no notebook writes it",
        LAB: "differs from its source",
        "labs/lab_91_small.py": "is missing",
    }


def test_a_changed_solution_is_found_in_cell_and_stub(course: Path):
    edit(course / "labs/exercises/90_small/solution.py", "Return the answer.", "Return all answers.")
    assert found_in(course) == {
        NOTEBOOK: "differs from its source",
        "labs/exercises/90_small/exercise.py": "differs from its source",
    }


def test_a_changed_title_is_found_in_the_neighbour(course: Path):
    edit(course / NOTEBOOK, "# 90 · A small lesson", "# 90 · A smaller lesson")
    assert found_in(course) == {"notebooks/91_small.ipynb": "differs from its source"}


@pytest.mark.slow
def test_a_stale_table_is_found_in_the_readme(course: Path):
    readme = course / "README.md"
    readme.write_text(
        "<!-- lessons: written by `make sync` -->\nstale\n<!-- lessons: end -->\n", encoding="utf-8"
    )
    assert found_in(course) == {"README.md": "differs from its source"}
    assert "[A small lesson](notebooks/90_small.ipynb)" in derived_files(course)[readme]


@pytest.mark.slow
def test_what_a_cell_shows_in_the_readme_is_kept_up_to_date(course: Path):
    notebook = nbformat.read(course / NOTEBOOK, 4)
    cell = next(cell for cell in notebook.cells if cell.cell_type == "code")
    cell.metadata["tags"] = ["readme:small"]
    cell.outputs = [new_output("display_data", {"text/markdown": "| a |", "image/png": "UE5H"})]
    (course / NOTEBOOK).write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    readme = course / "README.md"
    readme.write_text(
        "<!-- small: written by `make sync` -->\nstale\n<!-- small: end -->\n", encoding="utf-8"
    )
    assert set(found_in(course)) == {"README.md", "notebooks/images/small.png"}
    write_all(course)
    assert readme.read_text(encoding="utf-8").splitlines()[1] == "| a |"
    assert (course / "notebooks/images/small.png").read_bytes() == b"PNG"
    assert found_in(course) == {}


def hidden(cell: nbformat.NotebookNode) -> bool:
    return cell.metadata.get("jupyter", {}).get("source_hidden", False)


def test_only_a_cell_that_nobody_reads_is_folded(course: Path):
    path = course / NOTEBOOK
    notebook = nbformat.read(path, 4)
    before = [hidden(cell) for cell in notebook.cells]
    assert [cell.source.split("\n")[0] for cell in notebook.cells if hidden(cell)] == [
        "%%writefile ../labs/lab_90_small.py"
    ]
    for cell in cells_of(notebook, "code"):  # planted: what is folded is opened, and the other way round
        cell.metadata["jupyter"] = {"source_hidden": not hidden(cell)}
    path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    assert found_in(course) == {NOTEBOOK: "differs from its source"}
    write_all(course)
    assert [hidden(cell) for cell in nbformat.read(path, 4).cells] == before


@pytest.mark.parametrize(
    ("source", "folded"),
    [
        ("%%writefile ../labs/lab_90_plain.py\nimport torch\n", False),
        ("%%writefile ../labs/lab_90_proof.py\nfrom shared.runtime.run import run\n", True),
        ("%%writefile ../labs/lab_90_proof.py\nfrom lab_90_plain import main\n\nimport shared.comm\n", True),
        ("%%writefile ../labs/lab_90_job.sbatch\nsrun python -m shared.doctor\n", False),
        ("%%writefile ../labs/exercises/90_small/exercise.py\nfrom shared.comm import kernel\n", False),
        ("figure, axis = plt.subplots()\n" + "axis.plot([1])\n" * 7, True),
        ("def draw(axis, values):\n" + "    axis.plot(values)\n" * 7, True),
        ("figure, axis = plt.subplots()\naxis.plot([1])\n", False),
        ("from shared.runtime import figures\n" + "assert 1 + 1 == 2\n" * 7, False),
    ],
)
def test_the_rule_of_folding(source: str, folded: bool):
    assert is_folded(source) is folded


def test_two_cells_of_one_notebook_may_not_write_one_file(course: Path):
    edit(course / NOTEBOOK, "../labs/exercises/90_small/exercise.py", f"../{LAB}")
    with pytest.raises(InputError, match=f"{LAB} is written twice"):
        read_lessons(course)


def test_two_notebooks_may_not_write_one_file(course: Path):
    edit(course / "notebooks/91_small.ipynb", "../labs/lab_91_small.py", f"../{LAB}")
    with pytest.raises(InputError, match="is written by 90_small.ipynb and by 91_small.ipynb"):
        read_lessons(course)


def test_a_job_script_is_written_by_a_cell_but_is_no_lab(course: Path):
    notebook = nbformat.read(course / NOTEBOOK, 4)
    notebook.cells.insert(
        -1, new_code_cell("%%writefile ../labs/lab_90_small.sbatch\n#!/bin/bash\nfor i in 1")
    )
    (course / NOTEBOOK).write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    assert found_in(course) == {"labs/lab_90_small.sbatch": "is missing"}
    write_all(course)
    assert (course / "labs/lab_90_small.sbatch").read_text(encoding="utf-8") == "#!/bin/bash\nfor i in 1\n"
    (lesson, *_) = read_lessons(course)
    assert (lesson.labs, lesson.other_files) == ([LAB], ["labs/lab_90_small.sbatch"])
    assert len(inputs_digest(lesson, course)) == 16


def test_a_cell_may_not_write_outside_of_labs(course: Path):
    edit(course / NOTEBOOK, f"../{LAB}", "../shared/lab_90_small.py")
    with pytest.raises(InputError, match="write `%%writefile"):
        read_lessons(course)


@pytest.mark.slow
def test_make_sync_writes_what_differs_and_runs_nothing(tmp_path: Path):
    course = make_course(tmp_path / "course")
    notebook = nbformat.read(course / NOTEBOOK, 4)
    notebook.cells[-3].source = "raise SystemExit('a cell was run')"
    (course / NOTEBOOK).write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    (course / LAB).write_text("drift", encoding="utf-8")
    checked = python("-m", "shared.tools.sync", "--check", root=course, cwd=course)
    assert (checked.returncode, checked.stdout) == (1, f"{LAB} differs from its source\n")
    written = python("-m", "shared.tools.sync", root=course, cwd=course)
    assert (written.returncode, written.stdout) == (0, f"wrote {LAB}\n")
    assert found_in(course) == {}
    again = python("-m", "shared.tools.sync", root=course, cwd=course)
    assert (again.returncode, again.stdout) == (0, "")
