"""A copy of the course to run lessons in: what a reader has changed or written stays as it is."""

from pathlib import Path
from shutil import copytree

import nbformat

from shared.runtime.stubs import stub_of
from shared.tools.lessons import ANSWER, ROOT, WRITEFILE, cells_of


def copy_of_course(target: Path, root: Path = ROOT) -> Path:
    """Copy the course into the new folder ``target``, without what .gitignore names; return ``target``."""
    marks = root / ".gitignore"
    lines = marks.read_text(encoding="utf-8").split() if marks.is_file() else []
    ignored = {".git", *(line.rstrip("/").rpartition("/")[2] for line in lines)}

    def left_out(folder: str, names: list[str]) -> set[str]:
        environments = {name for name in names if (Path(folder) / name / "pyvenv.cfg").is_file()}
        return environments | {name for name in names if any(Path(name).match(mark) for mark in ignored)}

    copytree(root, target, ignore=left_out, ignore_dangling_symlinks=True)
    return target


def put_stubs(root: Path) -> None:
    """In the copy ``root`` of the course: stubs in place of answers, labs as their cells have them."""
    for path in sorted((root / "notebooks").glob("[0-9]*.ipynb")):
        notebook = nbformat.read(path, 4)
        for cell in cells_of(notebook, "code"):
            match = WRITEFILE.match(cell.source)
            if match is None:
                continue
            file = root / match[1]
            solution = file.with_name("solution.py")
            if not match[1].endswith(ANSWER):
                file.write_text(cell.source[match.end() :].rstrip("\n") + "\n", encoding="utf-8")
            elif solution.is_file():
                stub = stub_of(solution.read_text(encoding="utf-8"))
                cell.source = f"{cell.source.splitlines()[0]}\n{stub.rstrip()}"
        path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
