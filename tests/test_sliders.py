"""The sliders of lesson 28 in JupyterLab, in a browser: one that moves changes the plan."""

from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import expect

from tests.browser import jupyterlab, opened, run_all
from tests.helpers import HANG_S, LESSON_PATHS
from tests.test_browser import need_chromium

LESSON = next(path for path in LESSON_PATHS if path.name.startswith("28_"))
NAME = "98_sliders.ipynb"
SLIDERS = "interact(look"
OF_LABS = ("!", "%%writefile", "from shared.runtime.results", "for run in runs")


def without_labs() -> nbformat.NotebookNode:
    """The lesson up to its sliders, without what starts labs and reads what they recorded."""
    notebook = nbformat.read(LESSON, 4)
    last = next(index for index, cell in enumerate(notebook.cells) if SLIDERS in cell.source)
    kept = []
    for cell in notebook.cells[: last + 1]:
        if cell.cell_type == "code" and not cell.source.startswith(OF_LABS):
            cell.outputs, cell.execution_count = [], None
            kept.append(cell)
    notebook.cells = kept
    return notebook


@pytest.mark.slow
@pytest.mark.heavy
def test_a_slider_changes_the_plan(checkout: Path, tmp_path: Path):
    """TP 4 in place of 8 leaves twice as many parts of the batch, which is too many for 8 stages a rank."""
    need_chromium()
    nbformat.write(without_labs(), checkout / "notebooks" / NAME)
    with jupyterlab(checkout, tmp_path) as lab, opened(*lab, f"notebooks/{NAME}") as page:
        expect.set_options(timeout=HANG_S * 1000)
        cells = run_all(page)
        assert [cell for cell in cells if cell.errors] == []
        cell = page.locator(".jp-CodeCell").last
        sliders = cell.locator(".widget-hslider")
        expect(sliders).to_have_count(7)
        expect(cell.locator("img")).to_have_count(1)
        tp = sliders.filter(has=page.get_by_text("tp", exact=True)).locator(".noUi-handle")
        tp.press("ArrowLeft")
        expect(cell.get_by_text("This layout cannot run: interleaved stages need")).to_be_visible()
        expect(cell.locator("img")).to_have_count(0)
        tp.press("ArrowRight")
        expect(cell.locator("img")).to_have_count(1)


def test_committed_outputs_hold_no_widgets():
    """Their state differs from run to run. nbclient's kernels see no session of JupyterLab."""
    notebook = nbformat.read(LESSON, 4)
    cell = next(cell for cell in notebook.cells if SLIDERS in cell.source)
    assert [kind for output in cell.outputs for kind in output.data] == ["image/png", "text/plain"]
    assert "widgets" not in notebook.metadata
