"""What Sphinx builds the site from: README, lessons and tables of the course, as pages in one folder.

Nothing is written twice: a page is a file of the course.
"""

from collections.abc import Callable
from pathlib import Path
from shutil import copy, copytree

import nbformat

from shared.tools import diffs
from shared.tools.course import part_of
from shared.tools.lessons import HEADER, ROOT, WRITEFILE, Lesson, read_lessons

NOTEBOOKS = ROOT / "notebooks"
FILES = ("LICENSE", "CHANGELOG.md", "CONTRIBUTING.md")
LANGUAGES = {".py": "python", ".sbatch": "bash", ".yaml": "yaml"}
DOORS = """{.doors}
[Begin with lesson 00](notebooks/00_start_here.ipynb)
[Failures by what you see](notebooks/failures.md)
[Glossary](notebooks/glossary.md)"""
TO_LOOK_UP = (
    "notebooks/failures",
    "notebooks/glossary",
    "notebooks/strategies",
    "notebooks/questions",
    "notebooks/tools",
    "notebooks/rank_check",
)
THE_PROJECT = (
    "notebooks/lessons",
    "notebooks/using",
    "notebooks/where_run",
    "notebooks/topics",
    "CONTRIBUTING",
    "CHANGELOG",
)


def contents(lessons: list[Lesson]) -> str:
    """What the side bar lists: the lessons by part, and the other pages."""
    groups: dict[str, list[str]] = {}
    for lesson in lessons:
        groups.setdefault(part_of(lesson.number), []).append(lesson.path.with_suffix("").as_posix())
    groups["To look up"] = list(TO_LOOK_UP)
    groups["The project"] = list(THE_PROJECT)
    lists = [
        "\n".join(["```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```"])
        for title, pages in groups.items()
    ]
    return "\n\n" + "\n\n".join(lists) + "\n"


def slug(title: str) -> str:
    """The anchor that Jupyter gives to a heading."""
    return title.replace(" ", "-")


def write_pages(root: Path, target: Path) -> None:
    """Write the pages of the course at ``root`` into the new folder ``target``."""
    lessons = read_lessons(root)
    readme = (root / "README.md").read_text(encoding="utf-8")
    copytree(root / "notebooks", target / "notebooks", ignore=_all_but(".ipynb", ".png"))
    pages = {"index.md": landing_page(readme) + contents(lessons)}
    for name in FILES:
        copy(root / name, target)
    copytree(root / "labs", target / "labs", ignore=_all_but(".py", ".sbatch", ".yaml"))  # pages link to them
    for page in sorted((root / "notebooks").glob("*.md")):
        name = f"notebooks/{page.name}"
        text = page.read_text(encoding="utf-8")
        pages[name] = text.replace("](../README.md", "](../index.md")
    for name, text in pages.items():
        (target / name).write_text(text, encoding="utf-8")


def _all_but(*suffixes: str) -> Callable[[str, list[str]], list[str]]:
    def ignored(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if Path(name).suffix not in (*suffixes, "") or name.startswith(".")]

    return ignored


def landing_page(readme: str) -> str:
    """The README, with doors to what people look for first."""
    title, sentence, rest = readme.split("\n\n", 2)
    return "\n\n".join([title, sentence, DOORS, rest])


def read_notebook(text: str) -> nbformat.NotebookNode:
    """A lesson as myst-nb shows it, with alt texts where myst-nb looks for them."""
    notebook = nbformat.reads(text, 4)
    notebook.cells[0].source += more_links(notebook.cells[0].source)
    for index, cell in enumerate(notebook.cells):
        match = WRITEFILE.match(cell.source)
        if cell.cell_type == "markdown":
            source = cell.source.replace("](../README.md", "](../index.md")
            cell.source = diffs.fenced(source)  # Sphinx colours the code, too
        elif match:
            shown = as_file(match[1], cell.source[match.end() :])
            notebook.cells[index] = nbformat.v4.new_markdown_cell(shown, id=cell.id)
        elif cell.cell_type == "code":
            for output in cell.outputs:
                alt = output.get("metadata", {}).get("image/png", {}).get("alt")
                if alt:
                    cell.metadata["mystnb"] = {"image": {"alt": alt}}
    return notebook


def more_links(head: str) -> str:
    """What the site adds to the links under a lesson's header: its lab, and its notebook."""
    match = HEADER.match(head)
    if not match:
        return ""
    name = next(NOTEBOOKS.glob(f"{match['number']}_*.ipynb")).name
    return (
        f' · [The lab](#The-lab) · <a href="../_sources/notebooks/{name}" download>Download the notebook</a>'
    )


def as_file(name: str, body: str) -> str:
    """A file of the course under a line that tells its name and length."""
    lines = body.count("\n") + 1
    head = f'<details class="file" open><summary><code>{name}</code> · {lines} lines</summary>'
    return f"{head}\n\n{fenced(body, LANGUAGES.get(Path(name).suffix, 'text'))}\n\n</details>"


def fenced(text: str, language: str) -> str:
    """A text as a block of code; the fence is longer than any in a docstring."""
    fence = "`" * 8
    body = text.strip("\n")
    return f"{fence}{language}\n{body}\n{fence}"
