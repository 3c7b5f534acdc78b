"""Processes that tests start leave their temporary files in one folder, which goes when the tests end."""

import os
import tempfile

import pytest

FOLDER = pytest.StashKey[tempfile.TemporaryDirectory]()
BEFORE = pytest.StashKey[str | None]()


def pytest_configure(config: pytest.Config) -> None:
    tempfile.gettempdir()  # now it is known: pytest's own folders stay where they are
    config.stash[BEFORE] = os.environ.get("TMPDIR")
    config.stash[FOLDER] = tempfile.TemporaryDirectory(
        prefix="rank-by-rank-tests-", ignore_cleanup_errors=True
    )
    os.environ["TMPDIR"] = config.stash[FOLDER].name


def pytest_unconfigure(config: pytest.Config) -> None:
    if config.stash[BEFORE] is None:
        del os.environ["TMPDIR"]
    else:
        os.environ["TMPDIR"] = config.stash[BEFORE]
    config.stash[FOLDER].cleanup()
