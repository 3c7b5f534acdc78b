"""The lessons as their notebooks tell them: header, cells, labs, exercises."""

import ast
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import nbformat
from IPython.core.inputtransformer2 import TransformerManager

from shared.runtime.errors import InputError
from shared.runtime.results import ROOT

HEADER = re.compile(
    r"# (?P<number>\d\d) · (?P<title>[^\n]+)\n\n"
    r"\*\*(?P<question>[^\n]+\?)\*\* (?P<promise>[^\n]+)\n\n"
    r"Builds on (?P<builds_on>[^\n·]+) · (?P<minutes>\d+) min \+ (?P<exercise>\d+) min exercise · "
    r"(?P<ranks>[^\n·]+) · GPU: (?P<gpu>[^\n·]+)(?:\n|$)"
)
OTHER_KINDS = ("sbatch", "yaml")  # of files that a lesson writes beside its labs
WRITEFILE = re.compile(
    rf"%%writefile \.\./(labs/lesson_\d\d/exercise\.py|labs/lab_\w+\.(?:py|{'|'.join(OTHER_KINDS)}))(?:\n|$)"
)
PACKAGES = {"shared": "", "rank_tools": "rank_tools"}  # {name: the folder in which Python finds it}
RUN_AS_MODULE = re.compile(rf"-m ((?:{'|'.join(PACKAGES)})(?:\.\w+)*)")
ANSWER = "/exercise.py"
LAB_NAME = re.compile(r"labs/(?:\w+/)*\w+\.py")
IN_LABS = re.compile(r"lab_\w+|lesson_\d\d")  # first parts of the names of modules there


@dataclass(frozen=True)
class Lesson:
    """One notebook. ``path`` is relative to the root, as are the keys of ``written``."""

    path: Path
    notebook: nbformat.NotebookNode
    header: dict[str, str]
    written: dict[str, str]

    @property
    def number(self) -> str:
        return self.path.name[:2]

    @property
    def labs(self) -> list[str]:
        return [name for name in self.written if name.startswith("labs/lab_") and name.endswith(".py")]

    @property
    def other_files(self) -> list[str]:
        """What is no Python: job scripts, manifests."""
        return [name for name in self.written if name.endswith(OTHER_KINDS)]

    @property
    def exercises(self) -> list[str]:
        return [name for name in self.written if name.endswith(ANSWER)]


def cells_of(notebook: nbformat.NotebookNode, kind: str) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == kind]


def written_files(notebook: nbformat.NotebookNode, name: str) -> dict[str, str]:
    """{path: text} of each ``%%writefile`` cell, the text ending in one newline as IPython writes it."""
    files = {}
    for cell in cells_of(notebook, "code"):
        if cell.source.startswith("%%writefile"):
            match = WRITEFILE.match(cell.source)
            if not match:
                raise InputError(
                    f"{name}: write `%%writefile ../labs/lab_NAME.py`, not {cell.source.splitlines()[0]!r}"
                )
            if match[1] in files:
                raise InputError(f"{name}: {match[1]} is written twice")
            files[match[1]] = cell.source[match.end() :].rstrip("\n") + "\n"
    return files


def read_lesson(path: Path, root: Path = ROOT) -> Lesson:
    try:
        notebook = nbformat.read(path, 4)
    except ValueError as error:
        raise InputError(f"{path.name} is no notebook: {str(error).splitlines()[0]}") from None
    match = HEADER.match(notebook.cells[0].source) if notebook.cells else None
    if not match:
        raise InputError(f"{path.name}: the first cell is not a header as lessons.HEADER describes it")
    return Lesson(path.relative_to(root), notebook, match.groupdict(), written_files(notebook, path.name))


def read_lessons(root: Path = ROOT) -> list[Lesson]:
    """All lessons in order. Raises ``InputError`` when two of them write the same file."""
    lessons = [read_lesson(path, root) for path in sorted((root / "notebooks").glob("[0-9]*.ipynb"))]
    owner: dict[str, str] = {}
    for lesson in lessons:
        for name in lesson.written:
            if name in owner:
                raise InputError(f"{name} is written by {owner[name]} and by {lesson.path.name}")
            owner[name] = lesson.path.name
    return lessons


@cache
def imported_names(source: str, package: str = "") -> frozenset[str]:
    """Full names of all that Python code may import. ``package`` is what relative imports are relative to.

    ``from shared.runtime import group`` may mean a module or a value, so both names are given.
    """
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = ".".join(part for part in (package if node.level else "", node.module) if part)
            names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def imported_modules(source: str, package: str = "") -> set[str]:
    """Names of all modules of ours that Python code may import, such as ``shared.runtime.group``."""
    return {name for name in imported_names(source, package) if _is_ours(name.split(".")[0])}


def _is_ours(top: str) -> bool:
    return top in PACKAGES or bool(IN_LABS.fullmatch(top))


def plain_python(cell: str) -> str:
    """The Python of a cell, as IPython makes it; of a ``%%writefile`` cell its body, if that is Python."""
    if cell.startswith("%%writefile"):
        first, _, body = cell.partition("\n")
        return "" if first.endswith(OTHER_KINDS) else body
    return TransformerManager().transform_cell(cell)


def inputs_digest(lesson: Lesson, root: Path = ROOT) -> str:
    """A digest of all that an execution depends on: code cells, labs it names, helpers those import."""
    code = [cell.source for cell in cells_of(lesson.notebook, "code")]
    names = {name for source in code for name in LAB_NAME.findall(source)}
    names |= {name for name in names for name in LAB_NAME.findall(_read(root / name))}
    names = {name for name in names if not name.endswith(ANSWER)}  # each reader's own
    files = {name: _read(root / name) for name in names}
    # The check of an exercise belongs to the notebook's outputs, its solution does not.
    todo = {m for source in code for m in imported_modules(plain_python(source))}
    todo |= {m for source in code for m in RUN_AS_MODULE.findall(source)}
    todo |= {m for text in files.values() for m in imported_modules(text)}
    done: set[str] = set()
    while todo:
        module = todo.pop()
        if module not in done:
            done.add(module)
            for path, package in _files_of(module, root):
                name = path.relative_to(root).as_posix()
                files[name] = _read(path)
                todo |= imported_modules(files[name], package)
    digest = hashlib.sha256()
    for part in [*code, *(f"{name}\n{files[name]}" for name in sorted(files))]:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


def _files_of(module: str, root: Path) -> list[tuple[Path, str]]:
    """(file, its package) of a module; a package also has an ``__init__`` and perhaps a ``__main__``."""
    path = root / PACKAGES.get(module.partition(".")[0], "labs") / module.replace(".", "/")
    if path.is_dir():
        files = [path / "__init__.py", path / "__main__.py"]
        return [(file, module) for file in files if file.is_file()]
    file = path.with_suffix(".py")
    return [(file, module.rpartition(".")[0])] if file.is_file() else []


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""
