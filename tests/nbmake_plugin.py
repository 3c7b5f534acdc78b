"""Lessons under nbmake: a red one shows what its ranks printed, a green one must show what is committed."""

import functools
import os
from pathlib import Path

import nbformat
import pytest
from jupyter_client.connect import LocalPortCache
from nbclient import NotebookClient
from nbmake import nb_run
from nbmake.nb_result import NotebookError, NotebookResult
from nbmake.pytest_items import NotebookFailedException, NotebookItem

from shared.runtime.ports import free_port
from shared.tools.outputs import ANSI, compare
from tests.warm_notebooks import WarmNotebooks

SECTION = "what the failing cell printed"
SHOWN_CHARACTERS = 6000
NO_CELL = -1
LONGEST = ("27_", "13_")  # they wait for minutes, and other tests run meanwhile
DEVICE = "RANK_BY_RANK_DEVICE"
BEFORE = pytest.StashKey[str | None]()
THEIR_PORT = LocalPortCache.find_available_port
WARM = WarmNotebooks()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[BEFORE] = os.environ.get(DEVICE)
    os.environ.setdefault(DEVICE, "cpu")  # the committed outputs are those of CPUs
    # As in `make refresh`: without it the frames of a progress bar stay apart and outputs never agree.
    nb_run.NotebookClient = functools.partial(NotebookClient, coalesce_streams=True)
    nb_run.NotebookRun.execute = compared(nb_run.NotebookRun.execute)
    # A kernel binds its ports seconds after they were found free; under load others took them meanwhile.
    LocalPortCache.find_available_port = lambda cache, ip: free_port()


def pytest_unconfigure(config: pytest.Config) -> None:
    WARM.stop()
    if config.stash[BEFORE] is None:
        os.environ.pop(DEVICE, None)
    LocalPortCache.find_available_port = THEIR_PORT
    nb_run.NotebookClient = NotebookClient
    nb_run.NotebookRun.execute = nb_run.NotebookRun.execute.__wrapped__


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Lessons are numbered; any other notebook is a reader's own."""
    return collection_path.suffix == ".ipynb" and not collection_path.name[:1].isdigit() or None


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, NotebookItem):
        item.add_marker("slow")


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


def compared(execute):
    """``NotebookRun.execute``, with a difference from the committed outputs as one more error."""

    @functools.wraps(execute)
    def wrapper(self: nb_run.NotebookRun) -> NotebookResult:
        WARM.start()
        committed = nbformat.read(self.filename, 4)
        result = execute(self)
        if result.error is None and (differences := compare(committed, result.nb)):
            trace = "\n".join([*differences, "Run `make refresh` if the new outputs are right."])
            summary = f"{len(differences)} cell(s) show something else than what is committed"
            result = NotebookResult(nb=result.nb, error=NotebookError(summary, trace, NO_CELL))
        return result

    return wrapper
