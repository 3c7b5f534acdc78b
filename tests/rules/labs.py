"""Rules for labs and exercises."""

import ast
import sys
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

from shared.tools.sync import BEGIN, END
from tests.helpers import requirement_names

WRONG_ANSWERS_AT_LEAST = 3
REJECTED = "# rejected: "


def docstring_problems(path: Path, notebook: str) -> list[str]:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    lines = text.splitlines()
    found = []
    if not lines or lines[0].startswith("Run it:"):
        found.append(f"{path.name} does not say what it is")
    if not any(line.startswith("Run it:") and line.endswith(f" labs/{path.name}") for line in lines):
        found.append(f"{path.name} has no line `Run it: ... labs/{path.name}`")
    if f"Written by:  notebooks/{notebook}" not in lines:
        found.append(f"{path.name} has no line `Written by:  notebooks/{notebook}`")
    return found


def starts_with_torchrun(path: Path) -> bool:
    """Whether the docstring says so."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return any(line.split()[:3] == ["Run", "it:", "torchrun"] for line in text.splitlines())


def runner_problems(path: Path) -> list[str]:
    """A lab under torchrun enters through ``shared.runtime.run.run``, which ends it cleanly."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = [
        node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "shared.runtime.run"
    ]
    guards = [node for node in tree.body if isinstance(node, ast.If)]
    guards = [node for node in guards if ast.unparse(node.test) == "__name__ == '__main__'"]
    calls = [call for guard in guards for call in ast.walk(guard) if isinstance(call, ast.Call)]
    if any(alias.name == "run" for node in imports for alias in node.names) and any(
        ast.unparse(call.func) == "run" for call in calls
    ):
        return []
    return [f"{path.name} does not call shared.runtime.run.run under its __main__ guard"]


@cache
def declared_modules() -> set[str]:
    """Names under which the course's dependencies are imported."""
    wanted = requirement_names()
    return {
        module for module, names in packages_distributions().items() if wanted & {n.lower() for n in names}
    }


def import_problems(path: Path) -> list[str]:
    """A lab imports the standard library, declared dependencies and ``shared``; never another lab.

    One exception: ``lab_10_launch_*.py`` start the ``main`` of ``lab_10_train.py``; that is all they are for.
    """
    allowed = {"shared", *sys.stdlib_module_names, *declared_modules()}
    if path.name.startswith("lab_10_launch_"):
        allowed.add("lab_10_train")
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            found.add("." if node.level else node.module.split(".")[0])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
    return [f"{path.name} imports {name}" for name in sorted(found - allowed)]


def exercise_problems(name: str, root: Path) -> list[str]:
    """``name`` is that of the exercise's folder, such as ``05_reduce_scatter``."""
    folder = root / "labs" / "exercises" / name
    found = []
    solution = folder / "solution.py"
    if not solution.is_file():
        found.append(f"{name} has no solution")
    else:
        lines = [line.strip() for line in solution.read_text(encoding="utf-8").splitlines()]
        marks = [line for line in lines if line in (BEGIN, END)]
        if not marks or marks != [BEGIN, END] * (len(marks) // 2):
            found.append(f"{name}: the marks in its solution are not pairs of begin and end")
    if not (folder / "check.py").is_file():
        found.append(f"{name} has no check")
    wrong = sorted((folder / "wrong_answers").glob("*.py"))
    if len(wrong) < WRONG_ANSWERS_AT_LEAST:
        found.append(f"{name} has {len(wrong)} wrong answers, wanted are {WRONG_ANSWERS_AT_LEAST}")
    reasons = [path.read_text(encoding="utf-8").splitlines()[0] for path in wrong]
    found += [
        f"{path.name} does not begin with `{REJECTED}...`"
        for path, reason in zip(wrong, reasons, strict=True)
        if not reason.removeprefix(REJECTED).strip() or not reason.startswith(REJECTED)
    ]
    if len(set(reasons)) < len(reasons):
        found.append(f"{name}: two wrong answers are rejected for the same reason")
    return found
