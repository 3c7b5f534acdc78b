"""Rules for labs and exercises.

A *plain* lab is what a reader would copy: torch, torchvision and the standard library, no more; it may import
others of its kind. The first lab of a lesson that torchrun starts is plain. Other labs of the lesson import
it and prove it with ``shared``. A plain lab that fails on purpose says so in a line of its docstring:
``Ends with:   exit code 1``.
"""

import ast
import re
import sys
from pathlib import Path

from shared.tools.lessons import Lesson, imported_names

ENDS_WITH = re.compile(r"^Ends with: +exit code (\d+)$", re.MULTILINE)
PLAIN = {"torch", "torchvision", *sys.stdlib_module_names}


def siblings(path: Path) -> list[Path]:
    """The labs that a lab imports, and those that they import: they are copied with it."""
    names = [name.split(".")[0] for name in imported_names(path.read_text(encoding="utf-8"))]
    found = [path.with_name(f"{name}.py") for name in sorted(set(names)) if name.startswith("lab_")]
    return [*found, *(further for sibling in found for further in siblings(sibling))]


def is_module(path: Path) -> bool:
    """Whether a lab is only imported: its docstring names the command of another one."""
    return "__main__" not in path.read_text(encoding="utf-8")


def docstring_of(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def docstring_problems(path: Path, notebook: str) -> list[str]:
    lines = docstring_of(path).splitlines()
    problems = []
    if not lines or lines[0].startswith("Run it:"):
        problems.append(f"{path.name} does not say what it is")
    named = [line for line in lines if line.startswith("Run it:")]
    if not named or not (is_module(path) or f"labs/{path.name}" in named[0].split()):
        problems.append(f"{path.name} has no line `Run it: ... labs/{path.name}`")
    if f"Written by:  notebooks/{notebook} (edit it there)" not in lines:
        problems.append(f"{path.name} has no line `Written by:  notebooks/{notebook} (edit it there)`")
    return problems


def command_of(path: Path) -> list[str]:
    """The words of the command that the docstring's first line ``Run it:`` shows."""
    for line in docstring_of(path).splitlines():
        if line.startswith("Run it:"):
            return line.removeprefix("Run it:").split()
    return []


def exit_code_of(path: Path) -> int:
    """The exit code that the docstring announces: that of ``Ends with:   exit code 1``, else 0."""
    match = ENDS_WITH.search(docstring_of(path))
    return int(match[1]) if match else 0


def starts_with_torchrun(path: Path) -> bool:
    """Whether the docstring says so."""
    return command_of(path)[:1] == ["torchrun"]


def is_plain(path: Path) -> bool:
    """Whether torchrun starts it, and all that it and its siblings import is in ``PLAIN``."""
    return starts_with_torchrun(path) and not is_module(path) and imports(path) <= PLAIN


def plain_problems(lesson: Lesson, root: Path) -> list[str]:
    """The first lab that torchrun starts is plain."""
    labs = [root / name for name in lesson.labs]
    under_torchrun = [lab for lab in labs if starts_with_torchrun(lab) and not is_module(lab)]
    if not under_torchrun or is_plain(under_torchrun[0]):
        return []
    first = under_torchrun[0]
    more = ", ".join(sorted(imports(first) - PLAIN))
    return [f"{first.name} is the first lab of its lesson: it is to be plain, but imports {more}"]


def imports(path: Path) -> set[str]:
    """The top names of all that a file imports; of a relative import ``relative``."""
    names = imported_names(path.read_text(encoding="utf-8"), package="relative")
    own = {name.split(".")[0] for name in names if not name.startswith("lab_")}
    return own.union(*(imports(sibling) for sibling in siblings(path)))


def lab_problems(lesson: Lesson, root: Path) -> list[str]:
    """All that is wrong with the labs of a lesson."""
    problems = [] if lesson.labs else ["there is no lab"]
    for name in lesson.labs:
        problems += docstring_problems(root / name, lesson.path.name)
    return problems + plain_problems(lesson, root)
