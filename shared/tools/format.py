"""``make format``: format the code, and put formatted labs back into the cells that write them."""

import subprocess
import sys

import nbformat

from shared.tools import run_tool
from shared.tools.lessons import ROOT, WRITEFILE, cells_of, read_lessons


def labs_into_cells() -> None:
    """Replace the body of each ``%%writefile`` cell by its file. Stubs come from solutions: ``make sync``."""
    for lesson in read_lessons():
        for cell in cells_of(lesson.notebook, "code"):
            match = WRITEFILE.match(cell.source)
            if match and match[1] in lesson.labs and (ROOT / match[1]).is_file():
                body = (ROOT / match[1]).read_text(encoding="utf-8").rstrip("\n")
                cell.source = cell.source[: match.end()].rstrip("\n") + "\n" + body
        (ROOT / lesson.path).write_text(nbformat.writes(lesson.notebook) + "\n", encoding="utf-8")


def main() -> int:
    for command in (["check", "--fix", "--select", "I"], ["format"]):
        ruff = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "shared", "labs", "tests", "conftest.py"], cwd=ROOT
        )
        if ruff.returncode:
            return ruff.returncode
    labs_into_cells()
    return 0


if __name__ == "__main__":
    run_tool(main)
