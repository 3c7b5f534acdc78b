"""Rules for the rooms of ``shared/``: arrows point one way, and nobody leans on the authors' tools."""

import ast
import re
import sys
from pathlib import Path

import nbformat

from shared.tools.lessons import cells_of
from shared.tools.rooms import imported_by_lessons, modules_of, read_rooms, room_of

# {room: rooms that it may import}
MAY_IMPORT: dict[str, set[str]] = {
    "runtime": set(),
    "comm": {"runtime"},
    "training": {"runtime", "comm"},
    "checklist": set(),
    "doctor": set(),
    "planner": set(),
    "lesson_NN": {"runtime", "comm", "training"},
    "tools": {"runtime", "comm", "training", "checklist", "doctor", "planner", "lesson_NN"},
}
STAND_ALONE = ("checklist", "doctor", "planner")
RUNS_A_TOOL = re.compile(r"-m\s+(shared\.tools(?:\.\w+)*)")


def room_problems(root: Path) -> list[str]:
    """What keeps the rooms of a course from being built as ``MAY_IMPORT`` says."""
    rooms = read_rooms(root)
    found = []
    for module in sorted(rooms.modules):
        if room_of(module) not in MAY_IMPORT:
            found.append(f"{module} lies in none of the rooms {', '.join(MAY_IMPORT)}")
    for module, other in sorted(rooms.arrows):
        here, there = room_of(module), room_of(other)
        if here != there and there not in MAY_IMPORT.get(here, set()):
            found.append(f"{module} imports {other}: {here} may not import from {there}")
    found += [f"these import each other in a circle: {', '.join(circle)}" for circle in rooms.circles()]
    return found + _alone_problems(root) + _tool_problems(root)


def _alone_problems(root: Path) -> list[str]:
    """Three rooms can be copied as one folder: relative imports and the standard library, nothing else."""
    found = []
    for module, path in modules_of(root).items():
        if room_of(module) not in STAND_ALONE:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            elif isinstance(node, ast.ImportFrom) and node.level > 1:
                names = ["what lies above its folder"]
            for name in names:
                if name.split(".")[0] not in sys.stdlib_module_names:
                    found.append(f"{module} imports {name}: the {room_of(module)} stands alone")
    return found


def _tool_problems(root: Path) -> list[str]:
    """Readers need no authors' tool: no lab or notebook imports one or runs one."""
    found = []
    for name, modules in imported_by_lessons(root).items():
        for module in sorted(modules):
            if room_of(module) == "tools":
                found.append(f"{name} imports {module}: tools are for authors")
        for module in RUNS_A_TOOL.findall(_code_of(root / name)):
            found.append(f"{name} runs {module}: tools are for authors")
    return found


def _code_of(path: Path) -> str:
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    return "\n".join(cell.source for cell in cells_of(nbformat.read(path, 4), "code"))
