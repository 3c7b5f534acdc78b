"""``make format``: format code and cells, and put formatted labs back into the cells that write them.

ruff leaves a cell that begins with ``%%writefile`` alone, so a lab is formatted as a file.
"""

import subprocess
import sys
from pathlib import Path

import nbformat

from shared.tools import run_tool
from shared.tools.lessons import ROOT, WRITEFILE, cells_of, read_lessons


def labs_into_cells(root: Path = ROOT) -> None:
    """Replace the body of each ``%%writefile`` cell by its file. Stubs come from solutions: ``make sync``.

    A notebook in which nothing changes is not written.
    """
    for lesson in read_lessons(root):
        for cell in cells_of(lesson.notebook, "code"):
            match = WRITEFILE.match(cell.source)
            if match and match[1] in [*lesson.labs, *lesson.other_files] and (root / match[1]).is_file():
                body = (root / match[1]).read_text(encoding="utf-8").rstrip("\n")
                cell.source = cell.source[: match.end()].rstrip("\n") + "\n" + body
        path = root / lesson.path
        text = nbformat.writes(lesson.notebook) + "\n"
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def ruff(*arguments: str, root: Path) -> int:
    """The exit code of ruff with these arguments."""
    return subprocess.run([sys.executable, "-m", "ruff", *arguments], cwd=root).returncode


def main() -> int:
    code = ruff("check", "--fix", "--select", "I", root=ROOT)
    if code == 0:
        code = ruff("format", root=ROOT)
    if code == 0:
        labs_into_cells()
    return code


if __name__ == "__main__":
    run_tool(main)
