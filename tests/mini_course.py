"""A course of one small lesson that breaks no rule. Tests plant their faults in it."""

from pathlib import Path
from shutil import copytree, ignore_patterns

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from shared.runtime.stubs import stub_of
from shared.tools.lessons import Lesson, read_lesson
from shared.tools.outputs import clean
from shared.tools.sync import derived_files
from tests.helpers import ROOT
from tests.rules.cells import SET_UP

HEADER = """# {number} · A small lesson

**What does it show?** It shows what a test needs.

Builds on nothing · 5 min + 5 min exercise · 2 CPU ranks · GPU: not needed
"""
LAB = '''"""A lab of the tests.

Run it:      torchrun --standalone --nproc-per-node=2 labs/lab_{number}_small.py
Written by:  notebooks/{number}_small.ipynb
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
    lab = LAB.format(number=number).rstrip()
    cells = [
        new_markdown_cell(HEADER.format(number=number)),
        new_code_cell(SET_UP),
        new_code_cell("WORLD_SIZE = 2", metadata={"tags": ["parameters"]}),
        new_markdown_cell("Folded: proves nothing."),
        new_code_cell(f"%%writefile ../labs/lab_{number}_small.py\n{lab}"),
        new_code_cell(f"%%writefile ../labs/exercises/{number}_small/exercise.py\n{stub}"),
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
        solution = root / "labs" / "exercises" / f"{number}_small" / "solution.py"
        solution.parent.mkdir(parents=True)
        solution.write_text(SOLUTION.format(number=number), encoding="utf-8")
        write_lesson(root, mini_notebook(number), number)
    for path, text in derived_files(root).items():
        path.write_text(text, encoding="utf-8")
    return root
