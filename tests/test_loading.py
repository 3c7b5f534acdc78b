"""A file is loaded as a module by its path, and leaves nothing behind when it fails."""

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.runtime.loading import load_file


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def forget_the_modules() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_file_is_loaded_under_its_own_name_or_another(tmp_path: Path):
    path = write(tmp_path / "a_lab_of_the_tests.py", "def f():\n    return __name__\n")
    assert load_file(path).f() == "a_lab_of_the_tests"
    assert load_file(path, "another").f() == "another"


def test_each_load_runs_the_file_again(tmp_path: Path):
    path = write(tmp_path / "a_lab_of_the_tests.py", "x = 1\n")
    assert load_file(path).x == 1
    write(path, "x = 20\n")
    assert load_file(path).x == 20


def test_dataclasses_and_pickle_find_the_module(tmp_path: Path):
    text = "from dataclasses import dataclass\n\n@dataclass\nclass P:\n    x: 'int'\n"
    module = load_file(write(tmp_path / "a_lab_of_the_tests.py", text))
    assert sys.modules["a_lab_of_the_tests"] is module
    assert pickle.loads(pickle.dumps(module.P(3))) == module.P(3)


def test_a_file_can_import_its_neighbour_and_the_path_is_restored(tmp_path: Path):
    write(tmp_path / "a_neighbour_of_the_tests.py", "x = 2\n")
    before = list(sys.path)
    path = write(tmp_path / "a_lab_of_the_tests.py", "from a_neighbour_of_the_tests import x\n")
    assert load_file(path).x == 2
    assert sys.path == before


def test_a_file_that_fails_is_not_kept(tmp_path: Path):
    path = write(tmp_path / "a_lab_of_the_tests.py", "x = 1\n")
    first = load_file(path)
    write(path, "raise ZeroDivisionError('of the file')\n")
    before = list(sys.path)
    with pytest.raises(ZeroDivisionError, match="of the file"):
        load_file(path)
    assert sys.modules["a_lab_of_the_tests"] is first
    with pytest.raises(ZeroDivisionError):
        load_file(path, "another_name")
    assert "another_name" not in sys.modules
    assert sys.path == before


def test_what_is_no_file_or_no_python_is_refused(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="there is no file missing.py"):
        load_file(tmp_path / "missing.py")
    with pytest.raises(ImportError, match="text.txt is no Python file"):
        load_file(write(tmp_path / "text.txt", "x = 1\n"))
