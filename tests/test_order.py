"""On two workers a module's fixture is made once, and lessons start before what takes less."""

from pathlib import Path

import nbformat
import pytest

from tests.helpers import Done, notebook_of, python

pytestmark = pytest.mark.slow

SHARES = """
import os
import pytest

@pytest.fixture(scope="module")
def made():
    with open("made", "a") as file:
        file.write(f"{os.getpid()}\\n")

@pytest.mark.parametrize("number", range(8))
def test_small(number, made):
    pass
"""


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two lessons, of which the second has more commands, and a file whose tests share a fixture."""
    folder = tmp_path_factory.mktemp("course")
    (folder / "test_shares.py").write_text(SHARES, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    for name, commands in (("90_short", 1), ("91_long", 3)):
        nbformat.write(notebook_of(*["!true"] * commands), folder / f"{name}.ipynb")
    return folder


def pytest_in(course: Path, *arguments: str) -> Done:
    quiet = ("-q", "-p", "no:cacheprovider", "--nbmake")
    return python("-m", "pytest", *quiet, *arguments, cwd=course)


def test_long_lessons_come_first(course: Path):
    def order(*arguments: str) -> list[str]:
        lines = pytest_in(course, "--collect-only", *arguments).stdout.splitlines()
        return list(dict.fromkeys(line.partition("::")[0] for line in lines if "::" in line))

    assert order("-p", "tests.order_plugin") == ["91_long.ipynb", "90_short.ipynb", "test_shares.py"]
    assert order() == ["90_short.ipynb", "91_long.ipynb", "test_shares.py"]


def test_a_fixture_of_a_module_is_made_once(course: Path):
    workers = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "-p", "tests.order_plugin")
    done = pytest_in(course, "test_shares.py", *workers)
    assert "8 passed" in done.stdout
    assert len((course / "made").read_text(encoding="utf-8").split()) == 1
