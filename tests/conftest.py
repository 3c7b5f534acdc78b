"""Fixtures of the tests. The notebook plugin is loaded by the conftest of the root."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import copy_of_checkout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the checkout, in a folder whose name is a test by itself."""
    yield copy_of_checkout(tmp_path_factory.mktemp("course") / "ein Überblick, 概要")
