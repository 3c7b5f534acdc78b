"""Fixtures of the tests. The notebook plugin is loaded by the conftest of the root."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.tools.lessons import Lesson, read_lesson
from tests.helpers import LESSON_PATHS, copy_of_checkout


@pytest.fixture(params=LESSON_PATHS, ids=lambda path: path.stem)
def lesson(request: pytest.FixtureRequest) -> Lesson:
    """Each lesson in turn."""
    return read_lesson(request.param)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the checkout, in a folder whose name is a test by itself."""
    yield copy_of_checkout(tmp_path_factory.mktemp("course") / "ein Überblick, 概要")
