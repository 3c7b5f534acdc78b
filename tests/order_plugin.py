"""For ``pytest -n 2 --dist loadgroup``: what belongs together stays together, and long runs start first.

A fixture of a module, such as a copy of the checkout or a browser, would be made once by each worker, so the
tests that use one go to one worker. A lesson that starts last would keep one worker busy at the end.
"""

from pathlib import Path

import nbformat
import pytest
from nbmake.pytest_items import NotebookItem

FIRST = ("test_exercises.py", "test_planted_faults.py")  # many jobs in one go: minutes
SHARED_SCOPES = ("module", "package")


@pytest.hookimpl(tryfirst=True)  # xdist's own hook reads the mark
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if shares_a_fixture(item) and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    lessons = {path: commands_in(path) for path in {item.path for item in items if is_lesson(item)}}
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: place(item.path, lessons, slow))


def shares_a_fixture(item: pytest.Item) -> bool:
    """Whether tests of its module share what a fixture made. Notebooks have no fixtures."""
    info = getattr(item, "_fixtureinfo", None)
    definitions = info.name2fixturedefs.values() if info else ()
    return any(one.scope in SHARED_SCOPES for several in definitions for one in several)


def is_lesson(item: pytest.Item) -> bool:
    return isinstance(item, NotebookItem)


def commands_in(path: Path) -> int:
    """How many commands a notebook runs. What it takes is mostly their imports of torch."""
    cells = nbformat.read(path, as_version=4).cells
    return sum(line.startswith("!") for cell in cells for line in cell.source.splitlines())


def place(path: Path, lessons: dict[Path, int], slow: set[Path]) -> tuple[int, int]:
    """Where a file stands: tests that take minutes, lessons, files with slow tests, all the rest."""
    if path in lessons:
        return 1, -lessons[path]
    if path.name in FIRST:
        return 0, FIRST.index(path.name)
    return (2, 0) if path in slow else (3, 0)
