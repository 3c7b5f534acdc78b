"""Rules for the links in Markdown: each local file and each heading that is linked exists."""

import re
from pathlib import Path
from urllib.parse import unquote

import nbformat

from shared.tools.lessons import cells_of
from tests.rules.cells import FENCE, headings

LINK = re.compile(r"""\]\(<?([^)\s>]+)>?(?:\s+"[^"]*")?\)|\b(?:href|src)=["']([^"']+)["']""")
CODE = re.compile(r"(`+).+?\1")
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
MARKUP = re.compile(r"[*_`]|\[([^\]]*)\]\([^)]*\)")


def markdown_of(path: Path) -> str:
    """The text of a Markdown file, or of a notebook's Markdown cells."""
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    return "\n\n".join(cell.source for cell in cells_of(nbformat.read(path, 4), "markdown"))


def anchors(path: Path) -> set[str]:
    """The anchors of a file's headings: Jupyter's in a notebook, GitHub's in a Markdown file."""
    titles = [MARKUP.sub(r"\1", title) for _, title in headings(markdown_of(path))]
    if path.suffix == ".ipynb":
        return {title.replace(" ", "-") for title in titles}
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def link_problems(path: Path, root: Path) -> list[str]:
    problems = []
    text = CODE.sub("", FENCE.sub("", markdown_of(path)))
    for target in [in_markdown or in_html for in_markdown, in_html in LINK.findall(text)]:
        if ELSEWHERE.match(target):
            continue
        name, _, anchor = unquote(target).partition("#")
        file = (path.parent / name).resolve() if name else path.resolve()
        if not file.exists():
            problems.append(f"{path.name} links to {target}, which does not exist")
        elif not file.is_relative_to(root.resolve()):
            problems.append(f"{path.name} links to {target}, which is outside of the course")
        elif anchor and file.suffix in (".ipynb", ".md") and anchor not in anchors(file):
            problems.append(f"{path.name} links to {target}, but there is no such heading")
    return problems
