"""Run a notebook in a kernel, in each of the ways a reader would."""

import json
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
def kernel_environment(root: Path) -> Iterator[None]:
    """Kernels that start inside see what a reader's kernel sees, and ``shared`` of ``root``."""
    with pytest.MonkeyPatch.context() as patch:
        wanted = environment(root)
        for name in ("RANK_BY_RANK_RESULTS", "SHELLOPTS"):
            patch.delenv(name, raising=False)
        for name in ("PATH", "PYTHONPATH", "OMP_NUM_THREADS", "RANK_BY_RANK_DEVICE"):
            patch.setenv(name, wanted[name])
        yield


def run_nbclient(notebook: nbformat.NotebookNode, root: Path, kernel: str = OWN_KERNEL) -> list[str | None]:
    """Run all cells, also after a red one; return each code cell's error, or None."""
    client = NotebookClient(
        notebook,
        timeout=HANG_S,
        kernel_name=kernel,
        allow_errors=True,
        resources={"metadata": {"path": str(root / "notebooks")}},
    )
    with kernel_environment(root):
        client.execute()
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
                cwd=cwd and str(cwd),
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
