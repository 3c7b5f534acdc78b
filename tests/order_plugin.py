"""Long runs start first: a lesson that starts last would keep one of two workers busy when all else is done.

The workers of ``pytest -n 2 --dist loadfile --no-loadscope-reorder`` take files in this order, each file as a
whole: what a fixture of a module makes, such as a copy of the checkout or a browser, is made once.
"""

from pathlib import Path

import nbformat
import pytest
from nbmake.pytest_items import NotebookItem

FIRST = ("test_planted_faults.py", "test_exercises.py")  # many jobs in one go: minutes


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    lessons = {item.path for item in items if isinstance(item, NotebookItem)}
    commands = {path: commands_in(path) for path in lessons}
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: place(item.path, commands, slow))


def commands_in(path: Path) -> int:
    """How many commands a notebook runs. What it takes is mostly their imports of torch."""
    cells = nbformat.read(path, as_version=4).cells
    return sum(line.startswith("!") for cell in cells for line in cell.source.splitlines())


def place(path: Path, commands: dict[Path, int], slow: set[Path]) -> tuple[int, int]:
    """Where a file stands: tests that take minutes, lessons, files with slow tests, all the rest."""
    if path in commands:
        return 1, -commands[path]
    if path.name in FIRST:
        return 0, FIRST.index(path.name)
    return (2, 0) if path in slow else (3, 0)
