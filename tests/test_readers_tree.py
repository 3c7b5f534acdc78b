"""What a reader has written is still there, byte for byte, after tests, runs and a Ctrl-C.

The tree of this test has five solved exercises, an edited lab, an edited cell and a note in a notebook.
"""

import hashlib
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_markdown_cell

from shared.tools.copies import copy_of_course
from shared.tools.lessons import ANSWER, WRITEFILE, cells_of
from tests.helpers import environment, python
from tests.kernels import run_papermill

pytestmark = pytest.mark.slow

SOLVED = ("00_shares", "03_exchange", "06_uneven_average", "10_mend", "28_plan")
CACHES = {"__pycache__", ".pytest_cache", ".ruff_cache", ".mypy_cache", "runs"}
LESSON = "notebooks/00_start_here.ipynb"
NOTE = "# my own note, keep it"
KILLED_AFTER_S = 15.0  # in the middle of the lesson


def solve(root: Path, exercise: str, text: str) -> None:
    """Put an answer where a reader has it: into the cell, and by running it into the file."""
    (path,) = (root / "notebooks").glob(f"{exercise[:2]}_*.ipynb")
    notebook = nbformat.read(path, 4)
    for cell in cells_of(notebook, "code"):
        match = WRITEFILE.match(cell.source)
        if match and match[1].endswith(ANSWER):
            cell.source = f"{cell.source.splitlines()[0]}\n{text.rstrip()}"
            (root / match[1]).write_text(text, encoding="utf-8")
    nbformat.write(notebook, path)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = copy_of_course(tmp_path_factory.mktemp("reader") / "course")
    for exercise in SOLVED:
        solution = root / "labs" / f"lesson_{exercise[:2]}" / "solution.py"
        solve(root, exercise, f"{solution.read_text(encoding='utf-8')}\n{NOTE}\n")
    with (root / "labs" / "lab_00_hello.py").open("a", encoding="utf-8") as file:
        file.write(f"{NOTE}\n")
    notebook = nbformat.read(root / LESSON, 4)
    notebook.cells.insert(4, new_markdown_cell("A note of mine."))
    notebook.cells[-1].source += "\n\nAnother one."
    nbformat.write(notebook, root / LESSON)
    for path in (root / "notebooks").glob("[0-9]*.ipynb"):
        if path.name not in (Path(LESSON).name, "03_point_to_point.ipynb"):
            path.unlink()  # two lessons are enough to see what is written
    return root


def digests(root: Path) -> dict[str, str]:
    """{file: digest} of all that is no cache, and not in the folder of results."""
    found = {}
    for path in root.rglob("*"):
        name = path.relative_to(root)
        if path.is_file() and not CACHES & set(name.parts):
            found[name.as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


COMMANDS = {
    "test": ("-m", "pytest", "-q", "-m", "lesson", LESSON),
    "run": ("-m", "shared.tools.run_all"),
    "fit": ("-m", "shared.tools.fit"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_readers_tree_is_what_it_was(name: str, tree: Path):
    before = digests(tree)
    done = python(*COMMANDS[name], root=tree, cwd=tree)
    assert done.returncode == 0, done.stdout
    assert digests(tree) == before


@pytest.mark.parametrize("name", ["test", "run"])
def test_so_it_is_after_ctrl_c(name: str, tree: Path):
    before = digests(tree)
    command = [sys.executable, *COMMANDS[name]]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(
        command, cwd=tree, env=environment(tree), start_new_session=True, **quiet
    ) as process:
        time.sleep(KILLED_AFTER_S)
        for _ in range(3):  # a kernel that is being started may swallow it
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, signal.SIGINT)
                process.wait(30)
        code = process.poll()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        assert code not in (None, 0)
    assert digests(tree) == before


def test_a_run_of_all_cells_leaves_answer_and_lab(tree: Path, tmp_path: Path):
    """In the checkout itself, as in JupyterLab: the cell of the lab is not the file that was edited."""
    answer = (tree / "labs/lesson_00/exercise.py").read_bytes()
    assert run_papermill(tree / LESSON, tree) is None
    (tree / LESSON).with_suffix(".done.ipynb").unlink()
    assert (tree / "labs/lesson_00/exercise.py").read_bytes() == answer
    assert NOTE in (tree / "labs/lab_00_hello.py.kept1").read_text(encoding="utf-8")
