"""What Sphinx builds the site from: README, lessons and tables of the course, as pages in one folder.

Nothing is written twice: a page is a file of the course, or is put together from docs.passages of such files.
"""

import ast
import copy
import html
import re
import shutil
from pathlib import Path

import nbformat

from docs import failures
from docs.cheat_sheet import cheat_sheet
from docs.passages import fenced, sections
from shared.tools.folding import is_folded
from shared.tools.lessons import WRITEFILE, Lesson, read_lessons

LANGUAGES = {".py": "python", ".sbatch": "bash", ".yaml": "yaml"}
FOR_AUTHORS = ("Layout",)  # sections of the README
COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
LINK = re.compile(r"\[([^\[\]]*)\]\(([^)#\s:]+)((?:#[^)\s]*)?)\)")
PLACE = re.compile(r"\[([^\[\]]*)\]\(#([^)\s]+)\)")
TITLE = re.compile(r"^#+ (.+)$", re.MULTILINE)
DOORS = """{.doors}
[Begin with lesson 00](notebooks/00_start_here.ipynb)
[Cheat sheet](cheat_sheet.md)
[Failures by what you see](notebooks/failures.md)"""
TOCTREE = "\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n"


def slug(title: str) -> str:
    """The anchor that Jupyter gives to a heading."""
    return title.replace(" ", "-")


def write_sources(root: Path, target: Path) -> None:
    """Write the pages of the course at ``root`` into the new folder ``target``."""
    lessons = read_lessons(root)
    table = (root / "notebooks" / "failures.md").read_text(encoding="utf-8")
    readme = (root / "README.md").read_text(encoding="utf-8")
    pages = {
        "index.md": settled(landing_page(readme, failures.gallery(table)), root),
        "cheat_sheet.md": cheat_sheet(lessons, table),
        "notebooks/failures.md": failures.page(table),
    }
    linked = add_project_pages(pages, root)
    pages["index.md"] += toctrees(
        {
            "Lessons": [lesson.path.as_posix() for lesson in lessons],
            "To look up": ["cheat_sheet.md", "notebooks/failures.md"],
            "The project": [name for name in linked if name.endswith(".md")],
        }
    )
    (target / "notebooks").mkdir(parents=True)
    for lesson in lessons:
        nbformat.write(dressed(lesson), target / lesson.path)
    for name in linked:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, target / name)
    for name, text in pages.items():
        (target / name).write_text(text, encoding="utf-8")


def add_project_pages(pages: dict[str, str], root: Path) -> list[str]:
    """Add the Markdown files to which the landing page leads; return all files that links need."""
    needed: list[str] = []
    todo = ["index.md"]
    while todo:
        text = pages[todo.pop()]
        for name in [match[2] for match in LINK.finditer(text)]:
            is_lesson = name.endswith(".ipynb")
            if is_lesson or name in pages or name in needed or not (root / name).is_file():
                continue
            needed.append(name)
            if name.endswith(".md"):
                pages[name] = settled((root / name).read_text(encoding="utf-8"), root)
                todo.append(name)
    return needed


def dressed(lesson: Lesson) -> nbformat.NotebookNode:
    """A lesson that is folded as in JupyterLab, with its alt texts where myst-nb looks for them."""
    notebook = copy.deepcopy(lesson.notebook)
    for index, cell in enumerate(notebook.cells):
        match = WRITEFILE.match(cell.source)
        if match:
            text = as_file(match[1], cell.source[match.end() :], is_open=not is_folded(cell.source))
            notebook.cells[index] = nbformat.v4.new_markdown_cell(text, id=cell.id)
        elif cell.cell_type == "code":
            if is_folded(cell.source):
                cell.metadata["tags"] = [*cell.metadata.get("tags", []), "hide-input"]
            for output in cell.outputs:
                alt = output.get("metadata", {}).get("image/png", {}).get("alt")
                if alt:
                    cell.metadata["mystnb"] = {"image": {"alt": alt}}
    return notebook


def as_file(name: str, body: str, is_open: bool) -> str:
    """A file of the course under a line that tells name, length and purpose."""
    lines = body.count("\n") + 1
    purpose = html.escape(purpose_of(name, body), quote=False)
    purpose = re.sub(r"`+([^`]+)`+", r"<code>\1</code>", purpose)
    state = " open" if is_open else ""
    summary = " · ".join([f"<code>{name}</code>", f"{lines} lines", *filter(None, [purpose])])
    head = f'<details class="file"{state}><summary>{summary}</summary>'
    return f"{head}\n\n{fenced(body, LANGUAGES.get(Path(name).suffix, 'text'))}\n\n</details>"


def purpose_of(name: str, body: str) -> str:
    """The first line of a module's docstring; of another file the first line that is a comment."""
    if name.endswith(".py"):
        return (ast.get_docstring(ast.parse(body)) or "").partition("\n")[0]
    comments = [line.removeprefix("# ") for line in body.splitlines() if line.startswith("# ")]
    return (comments or [""])[0]


def landing_page(readme: str, gallery: str) -> str:
    """The README without what is for authors; the gallery follows the section that links to failures.md."""
    first, *others = sections(readme)
    title, sentence, rest = first.split("\n\n", 2)
    kept = [one for one in others if one.partition("\n")[0].removeprefix("## ") not in FOR_AUTHORS]
    naming = [index for index, one in enumerate(kept) if "(notebooks/failures.md)" in one]
    place = (naming or [len(kept) - 1])[0] + 1
    kept.insert(place, f"## What do you see?\n\n{gallery.replace('](', '](notebooks/')}")
    return "\n\n".join([title, sentence, DOORS, rest, *kept])


def settled(text: str, root: Path) -> str:
    """A page as it stands on the site: without comments, and without links that lead to no page."""
    text = COMMENT.sub("", text).replace("](README.md", "](index.md")
    text = LINK.sub(lambda match: match[1] if (root / match[2]).is_dir() else match[0], text)
    places = {github_slug(title): slug(title) for title in TITLE.findall(text)}

    def with_place(match: re.Match[str]) -> str:
        return f"[{match[1]}](#{places[match[2]]})" if match[2] in places else match[1]

    return PLACE.sub(with_place, text)


def github_slug(title: str) -> str:
    """The anchor that GitHub gives to a heading, by which the README links to its own sections."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def toctrees(captions: dict[str, list[str]]) -> str:
    """The contents at the side of each page, which also give the order of pages."""
    filled = {caption: pages for caption, pages in captions.items() if pages}
    return "".join(
        TOCTREE.format(caption=caption, pages="\n".join(pages)) for caption, pages in filled.items()
    )
