"""Lessons under nbmake. They run in a copy of the course, so that nothing of the reader's is written.

A red one shows what its ranks printed. A green one must show what is committed. One in which a cell says that
it was not run here counts as skipped.
"""

import functools
import os
import tempfile
import warnings
from pathlib import Path

import nbformat
import pytest
from jupyter_client.connect import LocalPortCache
from nbclient import NotebookClient
from nbmake import nb_run
from nbmake.nb_result import NotebookError, NotebookResult
from nbmake.pytest_items import NotebookFailedException, NotebookItem

from shared.runtime.errors import InputError
from shared.runtime.ports import free_port
from shared.tools.copies import copy_of_course, put_stubs
from shared.tools.lessons import read_lesson
from shared.tools.outputs import ANSI, compare, not_run
from shared.tools.refresh import KEY, is_fresh
from tests.helpers import ROOT

SECTION = "what the failing cell printed"
SHOWN_CHARACTERS = 6000
NO_CELL = -1
LONGEST = ("27_", "13_")  # they wait for minutes, and other tests run meanwhile
DEVICE = "RANK_BY_RANK_DEVICE"
BEFORE = pytest.StashKey[str | None]()
THEIR_PORT = LocalPortCache.find_available_port
COPY = pytest.StashKey[tempfile.TemporaryDirectory]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[BEFORE] = os.environ.get(DEVICE)
    os.environ.setdefault(DEVICE, "cpu")  # the committed outputs are those of CPUs
    config.stash[COPY] = tempfile.TemporaryDirectory(prefix="rank-by-rank-", ignore_cleanup_errors=True)
    # As in `make refresh`: without it the frames of a progress bar stay apart and outputs never agree.
    nb_run.NotebookClient = functools.partial(NotebookClient, coalesce_streams=True)
    folder = Path(config.stash[COPY].name) / "course"
    nb_run.NotebookRun.execute = compared(nb_run.NotebookRun.execute, folder)
    # A kernel binds its ports seconds after they were found free; under load others took them meanwhile.
    LocalPortCache.find_available_port = lambda cache, ip: free_port()


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[COPY].cleanup()
    if config.stash[BEFORE] is None:
        os.environ.pop(DEVICE, None)
    LocalPortCache.find_available_port = THEIR_PORT
    nb_run.NotebookClient = NotebookClient
    nb_run.NotebookRun.execute = nb_run.NotebookRun.execute.__wrapped__


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Lessons are numbered; any other notebook is a reader's own."""
    if collection_path.suffix == ".ipynb" and not collection_path.name[:1].isdigit():
        return True
    return None


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, NotebookItem):
        item.add_marker("lesson")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that wait the longest begin: a run does not end with one of them alone."""
    items.sort(key=lambda item: not (isinstance(item, NotebookItem) and item.path.name.startswith(LONGEST)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> pytest.TestReport:
    report = yield
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, NotebookFailedException) and (printed := printed_by_failing_cell(error.args[0])):
        report.sections.append((SECTION, printed[-SHOWN_CHARACTERS:]))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(config: pytest.Config) -> None:
    config.option.nbmake = False  # nbmake would advertise its home page under every run


def printed_by_failing_cell(result: NotebookResult) -> str:
    index = result.error.failing_cell_index
    outputs = [] if index == NO_CELL else result.nb.cells[index].get("outputs", [])
    text = "".join(output.text for output in outputs if output.output_type == "stream")
    return ANSI.sub("", text).replace("\r\n", "\n")


def compared(execute, folder: Path):
    """``NotebookRun.execute`` in a copy of the course, with a difference from its outputs as one more error.

    The copy is made in ``folder`` for the first lesson of this process.
    """

    @functools.wraps(execute)
    def wrapper(self: nb_run.NotebookRun) -> NotebookResult:
        if not folder.exists():
            put_stubs(copy_of_course(folder))
        path = Path(self.filename).resolve()
        if path.parent == ROOT / "notebooks":
            self.filename = folder / "notebooks" / path.name
        committed = nbformat.read(self.filename, 4)
        result = execute(self)
        if result.error is not None:
            return result
        if is_edited(self.filename, committed):
            warnings.warn(f"{path.name} was edited: its outputs are not compared", stacklevel=1)
            return result
        if differences := compare(committed, result.nb):
            summary = f"{len(differences)} cell(s) show something else than what is in the notebook"
            return NotebookResult(nb=result.nb, error=NotebookError(summary, "\n".join(differences), NO_CELL))
        if reasons := not_run(result.nb):
            pytest.skip("; ".join(reasons))
        return result

    return wrapper


def is_edited(path: Path, notebook: nbformat.NotebookNode) -> bool:
    """Whether its code, its labs or their helpers are no longer those that gave the outputs it holds."""
    if KEY not in notebook.metadata:
        return False
    try:
        return not is_fresh(read_lesson(path, path.parents[1]), path.parents[1])
    except InputError:
        return True
