"""A checkout runs wherever it lies and a kernel starts; its notebooks do not disturb each other."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest

from shared.tools.lessons import cells_of
from shared.tools.outputs import clean
from tests.helpers import ROOT, Done, command, notebook_of
from tests.kernels import run_nbclient, run_papermill
from tests.rules.cells import SET_UP

pytestmark = pytest.mark.slow

WHERE = (
    SET_UP,
    "import os, shared\nprint(shared.__file__, os.getcwd(), sep='\\n')",
    "!python -c 'import shared; print(shared.__file__)'",
    "!torchrun --standalone --nproc-per-node=1 ../labs/lesson_00/check.py --answer "
    "../labs/lesson_00/solution.py",
    "notebook.world_size(0)",
)
REFUSED = "InputError: WORLD_SIZE must be a whole number from 1 to 8, not 0"
PLACES: dict[str, Callable[[Path], Path]] = {
    "root": lambda checkout: checkout,
    "labs": lambda checkout: checkout / "labs",
}


def said(notebook: nbformat.NotebookNode, index: int) -> list[str]:
    return "".join(output.text for output in cells_of(notebook, "code")[index].outputs).splitlines()


@pytest.mark.parametrize("place", PLACES)
def test_a_kernel_uses_the_checkout_that_it_starts_in(place: str, checkout: Path):
    """The package is installed from another checkout: the one that these tests belong to."""
    assert checkout != ROOT
    notebook = notebook_of(*WHERE)
    errors = run_nbclient(notebook, PLACES[place](checkout), root=None)
    package = str(checkout / "shared" / "__init__.py")
    assert said(notebook, 1) == [package, str(checkout / "notebooks")]
    assert said(notebook, 2) == [package]
    (verdict,) = said(notebook, 3)
    assert verdict.startswith("Exercise 00 shares: no mistake shows with 1 rank(s)")
    assert errors == [None, None, None, None, REFUSED]


def test_a_kernel_far_from_any_checkout_uses_that_of_its_package(checkout: Path, tmp_path: Path):
    path = checkout / "notebooks" / "98_where.ipynb"
    nbformat.write(notebook_of(*WHERE[:3]), path)
    assert run_papermill(path, checkout, cwd=tmp_path) is None
    executed = nbformat.read(path.with_suffix(".done.ipynb"), 4)
    assert said(executed, 1) == [str(checkout / "shared" / "__init__.py"), str(checkout / "notebooks")]
    assert said(executed, 2) == [str(checkout / "shared" / "__init__.py")]


RECORDING = """%%writefile ../labs/lab_90_small.py
import sys

from shared.runtime.group import process_group
from shared.runtime.run import run
from shared.runtime.results import record_results


def main(word: str) -> None:
    with process_group():
        record_results("lab_90_small", {"word": word})


if __name__ == "__main__":
    run(main, sys.argv[1])"""


def test_two_copies_of_a_notebook_run_at_the_same_time(checkout: Path):
    path = checkout / "notebooks" / "90_small.ipynb"
    code = (
        SET_UP,
        "WORLD_SIZE = 2",
        RECORDING,
        "!torchrun --standalone --nproc-per-node={WORLD_SIZE} ../labs/lab_90_small.py {WORD}",
        "from shared.runtime.results import load_results\n"
        "assert load_results('lab_90_small', WORLD_SIZE) == [{'word': WORD}] * WORLD_SIZE",
    )
    notebook = notebook_of(*code)
    notebook.cells[1].metadata["tags"] = ["parameters"]
    clean(notebook)  # papermill asks for its language
    nbformat.write(notebook, path)

    def run(word: str) -> Done:
        target = checkout / f"{word}.ipynb"
        options = ("-p", "WORD", word, "--no-progress-bar", "--cwd", checkout)
        return command("papermill", path, target, *options, root=checkout, cwd=checkout)

    with ThreadPoolExecutor() as pool:
        done = list(pool.map(run, ("left", "right")))
    assert [result.returncode for result in done] == [0, 0], done
    assert not (checkout / "results").exists()
