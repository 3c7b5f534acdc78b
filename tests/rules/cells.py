"""Rules for the cells of a lesson."""

import re

from nbformat import NotebookNode

from shared.tools.lessons import cells_of

SET_UP = "from shared.runtime import notebook\n\nnotebook.setup()"
HEADING = re.compile(r"^(#{1,6}) +(.+?) *$", re.MULTILINE)
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
IMAGE = re.compile(r"!\[(?P<alt>[^\]]*)\]\(|<img\b(?P<attributes>[^>]*)>")


def headings(markdown: str) -> list[tuple[int, str]]:
    """(level, title) of each heading; code blocks are left out."""
    return [(len(marks), title) for marks, title in HEADING.findall(FENCE.sub("", markdown))]


def set_up_problems(notebook: NotebookNode) -> list[str]:
    code = cells_of(notebook, "code")
    problems = []
    if not code or code[0].source != SET_UP:
        problems.append("the first code cell is not the set-up")
    if len(code) < 2 or "parameters" not in code[1].metadata.get("tags", []):
        problems.append("the second code cell is not tagged `parameters`")
    elif not re.search(r"^WORLD_SIZE = \d+", code[1].source, re.MULTILINE):
        problems.append("the cell tagged `parameters` does not set WORLD_SIZE")
    return problems


def image_problems(notebook: NotebookNode) -> list[str]:
    problems = []
    for cell in cells_of(notebook, "markdown"):
        for match in IMAGE.finditer(FENCE.sub("", cell.source)):
            alt = match["alt"] or re.search(r"""\balt=(["'])\s*\S.*?\1""", match["attributes"] or "")
            if not alt:
                problems.append(f"an image has no alt text: {match[0]}")
    return problems
