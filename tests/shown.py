"""Notebooks of one executed cell, for the tests of outputs."""

from nbformat import NotebookNode
from nbformat.v4 import new_output

from tests.helpers import notebook_of


def shown(text: str, *tags: str) -> NotebookNode:
    """A notebook of one cell that shows ``text``."""
    notebook = notebook_of("1 + 1")
    cell = notebook.cells[0]
    cell.execution_count, cell.metadata["tags"] = 1, list(tags)
    cell.outputs = [new_output("stream", name="stdout", text=text)]
    return notebook


def picture(metadata: dict) -> NotebookNode:
    notebook = shown("")
    notebook.cells[0].outputs = [
        new_output("display_data", data={"image/png": "AAAA", "text/plain": "Picture"}, metadata=metadata)
    ]
    return notebook


def failed() -> NotebookNode:
    notebook = shown("")
    notebook.cells[0].outputs = [new_output("error", ename="ValueError", evalue="no", traceback=[])]
    return notebook
