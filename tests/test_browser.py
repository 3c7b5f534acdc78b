"""Lessons in JupyterLab, in a browser: Run All shows outputs, no error. LESSONS has their numbers, or 00."""

import os
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell

from tests.browser import ShownCell, find_chromium, jupyterlab, opened, run_all
from tests.helpers import LESSON_PATHS, ROOT

pytestmark = pytest.mark.slow

NUMBERS = os.environ.get("LESSONS", "00").split()
LESSONS = [path.name for path in LESSON_PATHS if path.name[:2] in NUMBERS]
RED = "98_red.ipynb"
if unknown := sorted(set(NUMBERS) - {name[:2] for name in LESSONS}):
    raise pytest.UsageError(f"there is no lesson {', '.join(unknown)}")
MISSING = "browser test not run: chromium is missing"


def need_chromium() -> None:
    """Without it fail where it is required, as in CI, and skip elsewhere."""
    if find_chromium() is None:
        if os.environ.get("RANK_BY_RANK_BROWSER") == "required":
            pytest.fail(MISSING)
        pytest.skip(MISSING)


@pytest.fixture(scope="module")
def lab(checkout: Path, tmp_path_factory: pytest.TempPathFactory):
    """JupyterLab serving a copy of the checkout in which nothing was executed yet."""
    need_chromium()
    for name in LESSONS:
        notebook = nbformat.read(checkout / "notebooks" / name, 4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        nbformat.write(notebook, checkout / "notebooks" / name)
    set_up = next(index for index, cell in enumerate(notebook.cells) if cell.cell_type == "code")
    planted = [new_code_cell("!false"), new_code_cell("print('not reached')")]
    notebook.cells = [*notebook.cells[: set_up + 1], *planted]
    nbformat.write(notebook, checkout / "notebooks" / RED)
    with jupyterlab(checkout, tmp_path_factory.mktemp("jupyter")) as server:
        yield server


def cells_after_run_all(lab: tuple[str, str], name: str) -> list[ShownCell]:
    with opened(*lab, f"notebooks/{name}") as page:
        cells = run_all(page)
        pictures = ROOT / ".browser"
        pictures.mkdir(exist_ok=True)
        page.screenshot(path=pictures / f"{Path(name).stem}.png")
    return cells


def prompts_after_run_all(name: str) -> list[str]:
    """Cells are counted from 1."""
    notebook = nbformat.read(ROOT / "notebooks" / name, 4)
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [f"[{number}]:" for number in range(1, len(code_cells) + 1)]


@pytest.mark.parametrize("name", LESSONS)
def test_run_all_shows_outputs_and_no_error(lab: tuple[str, str], name: str):
    cells = cells_after_run_all(lab, name)
    assert [cell for cell in cells if cell.errors] == []
    assert [cell.prompt for cell in cells] == prompts_after_run_all(name)
    shown = "\n".join(cell.output for cell in cells)
    assert "rank 1" in shown


def test_run_all_stops_at_a_failing_command(lab: tuple[str, str]):
    cells = cells_after_run_all(lab, RED)
    *_, failing, after = cells
    assert failing.errors == 1
    assert "CalledProcessError: the command above failed with exit code 1" in failing.output
    assert (after.prompt, after.output) == ("[ ]:", "")
