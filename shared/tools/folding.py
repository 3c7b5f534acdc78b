"""Which cells of a notebook are folded: JupyterLab hides their source, the site collapses them.

Nobody sets this by hand: ``make sync`` does, from the cell alone. Folded is a cell of ``LONG`` lines or more
that draws: its picture is what is looked at. All other cells are there to be read, and stay open.
"""

import ast

from nbformat import NotebookNode

from shared.tools.lessons import cells_of, plain_python

LONG = 8  # lines
DRAWS_WITH = {"figures", "figure", "axis", "axes"}


def is_folded(source: str) -> bool:
    """Whether a code cell with this source is folded."""
    if source.startswith("%%writefile") or len(source.splitlines()) < LONG:
        return False
    return _draws(source)


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
