"""Which cells of a notebook are folded: JupyterLab hides their source, the site collapses them.

Nobody sets this by hand: ``make sync`` does, from the cell alone. Folded is what no reader has to read:

- a lab that imports ``shared``: it proves what the lesson's plain labs do;
- the files of the training script: the lessons show excerpts;
- a cell of ``LONG`` lines or more that draws: its picture is what is looked at.

Plain labs, exercises, job scripts and all other cells stay open. Above a folded lab stands a line that begins
with ``Folded:`` and says what the lab does.
"""

import ast

from nbformat import NotebookNode

from shared.tools.lessons import WRITEFILE, cells_of, imported_modules, plain_python

LONG = 8  # lines
SCRIPT = {f"labs/lab_{name}.py" for name in ("10_train", "10_batches", "11_checkpointing", "13_stopping")}
DRAWS_WITH = {"figures", "figure", "axis", "axes"}


def is_folded_lab(source: str) -> bool:
    match = WRITEFILE.match(source)
    if not match or not match[1].startswith("labs/lab_"):
        return False
    return match[1] in SCRIPT or bool(imported_modules(plain_python(source)))


def is_folded(source: str) -> bool:
    """Whether a code cell with this source is folded."""
    if source.startswith("%%writefile"):
        return is_folded_lab(source)
    return len(source.splitlines()) >= LONG and _draws(source)


def _draws(source: str) -> bool:
    """Whether it uses a figure; an import alone does not count."""
    used = set()
    for node in ast.walk(ast.parse(plain_python(source))):
        if isinstance(node, ast.Name):
            used.add(node.id)
        elif isinstance(node, ast.arg):
            used.add(node.arg)
    return bool(used & DRAWS_WITH)


def fold(notebook: NotebookNode) -> None:
    """Set or remove ``source_hidden`` in the metadata of each code cell."""
    for cell in cells_of(notebook, "code"):
        cell.metadata.pop("jupyter", None)
        if is_folded(cell.source):
            cell.metadata["jupyter"] = {"source_hidden": True}
