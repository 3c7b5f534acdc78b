"""Rules for labs, and for the rooms of the lessons.

A lab, ``labs/lab_NN_name.py``, is *plain*, as a reader would copy it: torch, torchvision and the standard
library, no more; it may import others of its kind. One that fails on purpose says so in a line of its
docstring: ``Ends with:   exit code 1``. What proves it with ``shared`` lies in the room of its lesson,
``labs/lesson_NN``, as ``proof_name.py``. A room imports labs, ``shared``, and rooms of lessons before it.
"""

import ast
import re
import sys
from pathlib import Path

from shared.tools.lessons import Lesson, imported_names

ENDS_WITH = re.compile(r"^Ends with: +exit code (\d+)$", re.MULTILINE)
PLAIN = {"torch", "torchvision", *sys.stdlib_module_names}
ALLOWED = {"lab_10_one_process": {"sklearn"}}  # the script that the lesson begins with
ROOM = re.compile(r"lesson_(\d\d)\b")


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


def proof_problems(path: Path, root: Path) -> list[str]:
    """What is wrong with the docstring of a proof."""
    lines = docstring_of(path).splitlines()
    name = path.relative_to(root).as_posix()
    problems = []
    if not lines or lines[0].startswith("Run it:"):
        problems.append(f"{name} does not say what it is")
    if not is_module(path) and name not in command_of(path):
        problems.append(f"{name} has no line `Run it: ... {name}`")
    return problems


def room_problems(room: Path) -> list[str]:
    """Imports of a room that lead to a later lesson, or that stand before the path to them is there."""
    problems = []
    for path in sorted(set(room.glob("*.py")) - set(room.glob("test_*.py"))):
        ours = not command_of(path)  # nobody starts it by hand
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            modules = modules_of(node)
            others = [ROOM.match(module)[1] for module in modules if ROOM.match(module)]
            problems += [
                f"{room.name}/{path.name} imports a file of lesson {number}, which comes later"
                for number in others
                if number > room.name[-2:]
            ]
            if any(module.startswith(("lab_", "lesson_")) for module in modules) and not ours:
                problems.append(f"{room.name}/{path.name} imports a lab before anything of `shared`")
            ours = ours or any(module.split(".")[0] in ("shared", "tests") for module in modules)
    return problems


def modules_of(node: ast.stmt) -> list[str]:
    """Names of the modules that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


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
    """Each lab is plain."""
    problems = []
    for path in [root / name for name in lesson.labs]:
        more = ", ".join(sorted(imports(path) - PLAIN - ALLOWED.get(path.stem, set())))
        if more:
            problems.append(f"{path.name} is a lab: it is to be plain, but imports {more}")
    return problems


def imports(path: Path) -> set[str]:
    """The top names of all that a file imports; of a relative import ``relative``."""
    names = imported_names(path.read_text(encoding="utf-8"), package="relative")
    own = {name.split(".")[0] for name in names if not name.startswith("lab_")}
    return own.union(*(imports(sibling) for sibling in siblings(path)))


def lab_problems(lesson: Lesson, root: Path) -> list[str]:
    """All that is wrong with the labs of a lesson."""
    room = root / "labs" / f"lesson_{lesson.number}"
    proofs = sorted(room.glob("proof_*.py"))
    problems = [] if lesson.labs or proofs else ["there is no lab"]
    for name in lesson.labs:
        problems += docstring_problems(root / name, lesson.path.name)
    for path in proofs:
        problems += proof_problems(path, root)
    return problems + plain_problems(lesson, root) + room_problems(room)
