"""The table of topics has all 41 rows, and each leads to a section in which a lab runs."""

import re
from functools import cache

import nbformat

from tests.helpers import ROOT
from tests.rules import tell

ROW = re.compile(r"^\| (\d+) \| .+ \| (.+) \|$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#]+)#([^)]+)\)")


def rows() -> dict[int, list[tuple[str, str]]]:
    """{number: (notebook, heading) of each link}."""
    table = (ROOT / "notebooks" / "topics.md").read_text(encoding="utf-8")
    return {int(number): LINK.findall(links) for number, links in ROW.findall(table)}


@cache
def notebook_named(name: str) -> nbformat.NotebookNode:
    return nbformat.read(ROOT / "notebooks" / name, 4)


def section(notebook: str, anchor: str) -> list[nbformat.NotebookNode]:
    """The cells from a heading of the second level to the next."""
    cells, inside = [], False
    for cell in notebook_named(notebook).cells:
        titles = re.findall(r"^## (.+)$", cell.source, re.MULTILINE) if cell.cell_type == "markdown" else []
        if titles:
            inside = anchor in [title.replace(" ", "-") for title in titles]
        if inside:
            cells.append(cell)
    return cells


def test_each_topic_has_its_row():
    assert list(rows()) == list(range(1, 42))


def test_each_topic_leads_to_sections_and_to_something_that_runs():
    dead = []
    for number, links in rows().items():
        sections = [section(*link) for link in links]
        runs = any(cell.cell_type == "code" and cell.outputs for cells in sections for cell in cells)
        if not (sections and all(sections) and runs):
            dead.append(f"topic {number} leads to nothing that runs")
    tell(dead)
