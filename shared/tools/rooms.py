"""``python -m shared.tools.rooms``: the modules of ``shared/``, who imports whom, and a picture of it.

A *room* is a folder of ``shared/``; ``lesson_NN`` stands for those of one lesson each. An *arrow* leads from
a module to one that it imports, at the top of its text or inside a function. ``make sync`` puts the picture
into the README.
"""

import ast
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from shared.tools import run_tool
from shared.tools.lessons import ROOT, cells_of, plain_python, read_lessons

LESSONS = "notebooks and labs"
OF_A_LESSON = "lesson_NN"


@dataclass(frozen=True)
class Rooms:
    """``modules``: their full names. ``arrows``: (importing module, imported module)."""

    modules: frozenset[str]
    arrows: frozenset[tuple[str, str]]

    @property
    def names(self) -> list[str]:
        """The rooms in which there are modules, those that import least first."""
        rooms = {room_of(module) for module in self.modules} - {""}
        return sorted(rooms, key=lambda room: (len({b for a, b in self.between() if a == room}), room))

    def between(self) -> Counter[tuple[str, str]]:
        """{(importing room, imported room): number of arrows}."""
        pairs = [(room_of(a), room_of(b)) for a, b in self.arrows]
        return Counter((a, b) for a, b in pairs if a != b)

    def circles(self) -> list[list[str]]:
        """Groups of modules each of which imports, directly or not, all modules of its group."""
        reached = {module: self._reached_from(module) for module in self.modules}
        groups = set()
        for module in self.modules:
            if module in reached[module]:
                groups.add(frozenset(other for other in reached[module] if module in reached[other]))
        return sorted(sorted(group) for group in groups)

    def _reached_from(self, start: str) -> set[str]:
        reached: set[str] = set()
        todo = [start]
        while todo:
            module = todo.pop()
            new = {b for a, b in self.arrows if a == module} - reached
            reached |= new
            todo += new
        return reached


def room_of(module: str) -> str:
    """``comm`` for ``shared.comm.ring``, and nothing for a module that lies in no room."""
    parts = module.split(".")
    return re.sub(r"^lesson_\d\d$", OF_A_LESSON, parts[1]) if len(parts) > 2 else ""


def modules_of(root: Path) -> dict[str, Path]:
    """{full name: file} of all modules; a package without code of its own is none."""
    found = {}
    for path in sorted((root / "shared").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if path.name == "__init__.py" and not _has_code(path):
            continue
        found[".".join(parts)] = path
    return found


def _has_code(path: Path) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return len(tree.body) > int(ast.get_docstring(tree) is not None)


def imported(source: str, package: str, modules: set[str]) -> set[str]:
    """Those of ``modules`` that a text imports. ``package`` is what its relative imports are relative to."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                names.add(inner if inner in modules else base)
    packages = {name.removesuffix(".__init__"): name for name in modules}
    return {packages[name] for name in names if name in packages}


def read_rooms(root: Path = ROOT) -> Rooms:
    """All modules of ``shared/`` below ``root`` and the arrows between them."""
    modules = modules_of(root)
    arrows = set()
    for name, path in modules.items():
        package = name.rpartition(".")[0]
        for other in imported(path.read_text(encoding="utf-8"), package, set(modules)):
            arrows.add((name, other))
    return Rooms(frozenset(modules), frozenset(arrows))


def imported_by_lessons(root: Path = ROOT) -> dict[str, set[str]]:
    """{notebook, lab or part of an exercise: modules of ``shared/`` that it imports}."""
    modules = set(modules_of(root))
    found = {}
    for path in sorted((root / "labs").rglob("*.py")):
        found[path.relative_to(root).as_posix()] = imported(path.read_text(encoding="utf-8"), "", modules)
    for lesson in read_lessons(root):
        names: set[str] = set()
        for cell in cells_of(lesson.notebook, "code"):
            names |= imported(plain_python(cell.source), "", modules)
        found[lesson.path.as_posix()] = names
    return found


def picture(root: Path = ROOT) -> str:
    """The rooms as a Mermaid diagram in Markdown, with a text for those who do not see it."""
    rooms = read_rooms(root)
    pairs = sorted(rooms.between())
    used = {room_of(module) for names in imported_by_lessons(root).values() for module in names}
    sentences = [f"{a} imports {b}" for a, b in pairs]
    sentences += [f"{LESSONS} import {room}" for room in sorted(used)]
    lines = ["```mermaid", "flowchart LR"]
    lines += ["    accTitle: The rooms of shared", f"    accDescr: {'; '.join(sentences)}."]
    lines.append(f'    lessons["{LESSONS}"]')
    for room in rooms.names:
        lines.append(f'    {room}["<b>{room}</b><br>{_duty(root, room)}"]')
    lines += [f"    lessons --> {room}" for room in sorted(used)]
    lines += [f"    {a} --> {b}" for a, b in pairs]
    return "\n".join([*lines, "```"])


def _duty(root: Path, room: str) -> str:
    """The first line of the room's docstring, up to a colon."""
    if room == OF_A_LESSON:
        return "Harness of one lesson each"
    text = (root / "shared" / room / "__init__.py").read_text(encoding="utf-8")
    line = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return line.partition(":")[0].rstrip(".")


def main() -> int:
    rooms = read_rooms()
    sizes = Counter(room_of(module) for module in rooms.modules)
    for room in rooms.names:
        inside = sum(room_of(a) == room_of(b) == room for a, b in rooms.arrows)
        to = {b: count for (a, b), count in sorted(rooms.between().items()) if a == room}
        out = ", ".join(f"{count} to {other}" for other, count in to.items()) or "none to other rooms"
        print(f"{room:10} {sizes[room]:3} modules, {inside:3} arrows inside, {out}")
    print(f"{len(rooms.modules)} modules, {len(rooms.arrows)} arrows, {len(rooms.circles())} circles")
    for circle in rooms.circles():
        print(f"circle: {', '.join(circle)}")
    print(f"\n{picture()}")
    return int(bool(rooms.circles()))


if __name__ == "__main__":
    run_tool(main)
