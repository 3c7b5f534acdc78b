"""CI looks twice at one or two red tests: what is red once is named and let pass; red twice is red."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT, Done

RED_ONCE = """
from pathlib import Path

def test_of_a_race():
    seen = Path(__file__).with_name("seen")
    repeated = seen.exists()
    seen.touch()
    assert repeated

def test_green():
    pass
"""
RED_TWICE = "def test_wrong():\n    assert False\n"
THREE_RED = "import pytest\n\n@pytest.mark.parametrize('n', range(3))\ndef test_wrong(n):\n    assert False\n"
NO_TEST = "import nothing_of_this_name\n"


def second_look(folder: Path, tests: str) -> Done:
    """``.ci/again`` after a first run of ``tests``, in a folder that has this environment as its own."""
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "again", folder / ".ci")
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "test_some.py").write_text(tests, encoding="utf-8")
    variables = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # to start faster
    first = [sys.executable, "-m", "pytest", "-q", "test_some.py"]
    assert subprocess.run(first, cwd=folder, env=variables, capture_output=True, check=False).returncode != 0
    command = ["bash", str(folder / ".ci" / "again")]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_red_once_is_named_and_let_pass(tmp_path: Path):
    done = second_look(tmp_path, RED_ONCE)
    assert done.returncode == 0, done.stdout
    assert "test_some.py::test_of_a_race" in done.stdout.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("tests", [RED_TWICE, THREE_RED, NO_TEST], ids=["twice", "three", "no test"])
def test_all_else_is_red(tmp_path: Path, tests: str):
    assert second_look(tmp_path, tests).returncode != 0
