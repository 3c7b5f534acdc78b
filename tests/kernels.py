"""Run a notebook in a kernel, in each of the ways a reader would."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import papermill
import pytest
from nbclient import NotebookClient
from papermill.exceptions import PapermillExecutionError

from tests.helpers import HANG_S, Done, environment, python

OWN_KERNEL = "python3"


@contextmanager
def kernel_environment(root: Path | None) -> Iterator[None]:
    """Kernels that start inside see what a reader's kernel sees, and ``shared`` of ``root``."""
    with pytest.MonkeyPatch.context() as patch:
        wanted = environment(root)
        for name in os.environ.keys() - wanted.keys():
            patch.delenv(name)
        for name, value in wanted.items():
            patch.setenv(name, value)
        yield


def run_nbclient(
    notebook: nbformat.NotebookNode, folder: Path, root: Path | None, kernel: str = OWN_KERNEL
) -> list[str | None]:
    """Run all cells in ``folder``, also after a red one; return each code cell's error, or None."""
    client = NotebookClient(notebook, timeout=HANG_S, kernel_name=kernel, allow_errors=True)
    with kernel_environment(root):
        client.execute(cwd=str(folder))
    return [error_of(cell) for cell in notebook.cells if cell.cell_type == "code"]


def error_of(cell: nbformat.NotebookNode) -> str | None:
    lines = [line for output in cell.outputs if output.output_type == "error" for line in output.traceback]
    return "\n".join(lines) if lines else None


def run_papermill(path: Path, root: Path, cwd: Path | None = None, **parameters: object) -> str | None:
    """Run a notebook file; return the text of the error, or None. The executed copy is ``*.done.ipynb``."""
    with kernel_environment(root):
        try:
            papermill.execute_notebook(
                str(path),
                str(path.with_suffix(".done.ipynb")),
                parameters=parameters,
                kernel_name=OWN_KERNEL,
                progress_bar=False,
                cwd=str(cwd or root),
            )
        except PapermillExecutionError as error:
            return "\n".join(error.traceback)
    return None


def run_nbmake(root: Path, *arguments: str) -> Done:
    """Run pytest with ``arguments`` on the checkout at ``root``."""
    quiet = ("-q", "-p", "no:cacheprovider", "--color=no")
    return python("-m", "pytest", *quiet, *arguments, root=root, cwd=root)


def install_kernel(folder: Path, name: str, interpreter: Path) -> None:
    """Describe a kernel under ``folder``, which is to stand in JUPYTER_PATH."""
    spec = {
        "argv": [str(interpreter), "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": name,
        "language": "python",
    }
    target = folder / "kernels" / name / "kernel.json"
    target.parent.mkdir(parents=True)
    target.write_text(json.dumps(spec), encoding="utf-8")
