"""Rules for labs and exercises.

A *plain* lab is what a reader would copy: torch, torchvision, tqdm and the standard library, no more. The
first lab of a lesson that torchrun starts is plain. Other labs of the lesson import it and prove it with
``shared``. A plain lab that fails on purpose says so in a line of its docstring:
``Ends with:   exit code 1``.
"""

import ast
import re
import sys
from pathlib import Path

from shared.tools.lessons import Lesson, imported_names

ENDS_WITH = re.compile(r"^Ends with: +exit code (\d+)$", re.MULTILINE)
PLAIN = {"torch", "torchvision", "tqdm", *sys.stdlib_module_names}


def docstring_of(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def docstring_problems(path: Path, notebook: str) -> list[str]:
    lines = docstring_of(path).splitlines()
    problems = []
    if not lines or lines[0].startswith("Run it:"):
        problems.append(f"{path.name} does not say what it is")
    if not any(line.startswith("Run it:") and f"labs/{path.name}" in line.split() for line in lines):
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
    """Whether torchrun starts it, and all that it imports is in ``PLAIN``."""
    return starts_with_torchrun(path) and imports(path) <= PLAIN


def plain_problems(lesson: Lesson, root: Path) -> list[str]:
    """The first lab that torchrun starts is plain."""
    under_torchrun = [root / name for name in lesson.labs if starts_with_torchrun(root / name)]
    if not under_torchrun or is_plain(under_torchrun[0]):
        return []
    first = under_torchrun[0]
    more = ", ".join(sorted(imports(first) - PLAIN))
    return [f"{first.name} is the first lab of its lesson: it is to be plain, but imports {more}"]


def imports(path: Path) -> set[str]:
    """The top names of all that a file imports; of a relative import ``relative``."""
    names = imported_names(path.read_text(encoding="utf-8"), package="relative")
    return {name.split(".")[0] for name in names}


def lab_problems(lesson: Lesson, root: Path) -> list[str]:
    """All that is wrong with the labs of a lesson."""
    problems = [] if lesson.labs else ["there is no lab"]
    for name in lesson.labs:
        problems += docstring_problems(root / name, lesson.path.name)
    return problems + plain_problems(lesson, root)
