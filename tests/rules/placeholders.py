"""Rule for the skeleton of a lesson: no placeholder of it is left."""

import re
from pathlib import Path

from shared.tools.lessons import read_lessons

TODO = re.compile(r"\bTODO\b.*")


def placeholder_problems(root: Path) -> list[str]:
    """Each TODO in a lesson, its labs, exercises and planted faults."""
    found = []
    for lesson in read_lessons(root):
        for index, cell in enumerate(lesson.notebook.cells):
            if not cell.source.startswith("%%writefile"):  # the file is read below
                found += [f"{lesson.path.name}, cell {index}: {text}" for text in TODO.findall(cell.source)]
    paths = [*(root / "labs").rglob("*.py"), *(root / "tests" / "faults").glob("*.py")]
    for path in sorted(paths):
        if path.name == "exercise.py":  # derived from solution.py
            continue
        name = path.relative_to(root).as_posix()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            found += [f"{name}:{number}: {text}" for text in TODO.findall(line)]
    return found
