"""Fixtures of the tests. The notebook plugin is loaded by the conftest of the root."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.tools.copies import copy_of_course, put_stubs

# The helpers and tools that a reader uses, on his machine. All other tests are for those who write lessons.
FOR_READERS = {
    "test_bad_input.py",
    "test_children.py",
    "test_data.py",
    "test_environment.py",
    "test_fit.py",
    "test_lab_runner.py",
    "test_loading.py",
    "test_move_answers.py",
    "test_parity.py",
    "test_record.py",
    "test_set_up.py",
    "test_writing.py",
}


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path.name not in FOR_READERS:
        item.add_marker("author")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the checkout with stubs in place of answers, in a folder whose name is a test by itself."""
    copy = copy_of_course(tmp_path_factory.mktemp("course") / "ein Überblick, 概要")
    put_stubs(copy)
    yield copy
