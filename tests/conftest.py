"""Fixtures of the tests. The notebook plugin is loaded by the conftest of the root."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.tools.copies import copy_of_course, put_stubs

collect_ignore = ["checklist"]  # scripts and a notebook to be read, not run


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the checkout with stubs in place of answers, in a folder whose name is a test by itself."""
    copy = copy_of_course(tmp_path_factory.mktemp("course") / "ein Überblick, 概要")
    put_stubs(copy)
    yield copy
