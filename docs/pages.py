"""What Sphinx builds the site from: README, lessons and tables of the course, as pages in one folder.

Nothing is written twice: a page is a file of the course, or is put together from passages of such files.
"""

import re
from collections.abc import Callable
from pathlib import Path
from shutil import copy, copytree

import nbformat

from docs.cheat_sheet import cheat_sheet
from docs.passages import fenced, groups, with_columns
from shared.tools.folding import is_folded
from shared.tools.lessons import WRITEFILE, read_lessons

FILES = ("LICENSE", "CHANGELOG.md", "CONTRIBUTING.md")
LANGUAGES = {".py": "python", ".sbatch": "bash", ".yaml": "yaml"}
FOR_AUTHORS = re.compile(r"^## Layout\n.*?(?=^## )", re.DOTALL | re.MULTILINE)
AFTER_GALLERY = "## Three ways of using it\n"  # a section of the README
DOORS = """{.doors}
[Begin with lesson 00](notebooks/00_start_here.ipynb)
[Cheat sheet](cheat_sheet.md)
[Failures by what you see](notebooks/failures.md)"""
CONTENTS = """
```{toctree}
:hidden:
:glob:
:caption: Lessons

notebooks/[0-9]*
```

```{toctree}
:hidden:
:caption: To look up

cheat_sheet
notebooks/failures
notebooks/rank_check
```

```{toctree}
:hidden:
:caption: The project

CONTRIBUTING
CHANGELOG
```
"""


def slug(title: str) -> str:
    """The anchor that Jupyter gives to a heading."""
    return title.replace(" ", "-")


def write_pages(root: Path, target: Path) -> None:
    """Write the pages of the course at ``root`` into the new folder ``target``."""
    readme = (root / "README.md").read_text(encoding="utf-8")
    failures = (root / "notebooks" / "failures.md").read_text(encoding="utf-8")
    pages = {
        "index.md": landing_page(readme, gallery(failures)) + CONTENTS,
        "cheat_sheet.md": cheat_sheet(read_lessons(root), failures),
        "notebooks/failures.md": failures_page(failures),
        "notebooks/rank_check.md": (root / "notebooks" / "rank_check.md").read_text(encoding="utf-8"),
    }
    copytree(root / "notebooks", target / "notebooks", ignore=_all_but(".ipynb", ".png"))
    for name in FILES:
        copy(root / name, target)
    for name, text in pages.items():
        (target / name).write_text(text, encoding="utf-8")


def _all_but(*suffixes: str) -> Callable[[str, list[str]], list[str]]:
    def ignored(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if Path(name).suffix not in (*suffixes, "") or name.startswith(".")]

    return ignored


def landing_page(readme: str, gallery: str) -> str:
    """The README without what is for authors, with doors to the lessons and a gallery of failures."""
    title, sentence, rest = FOR_AUTHORS.sub("", readme).split("\n\n", 2)
    before, heading, after = rest.partition(AFTER_GALLERY)
    if not heading:
        raise LookupError(f"the README has no section {AFTER_GALLERY.strip()!r}")
    shown = f"{before}## What do you see?\n\n{gallery.replace('](', '](notebooks/')}\n\n{heading}{after}"
    return "\n\n".join([title, sentence, DOORS, shown])


def failures_page(failures: str) -> str:
    """The table of failures: each group gets a heading. The names of the cases are left out."""
    parts = [failures.partition("\n")[0]]
    for name, table in groups(failures).items():
        parts += [f"## {name}", with_columns(table, ("You see", "You did", "Why", "Cure", "Lesson"))]
    return "\n\n".join(parts) + "\n"


def gallery(failures: str) -> str:
    """Each group of failures folded, with what one sees and what helps."""
    parts = []
    for name, table in groups(failures).items():
        count = table.count("\n") - 1
        short = with_columns(table, ("You see", "You did", "Cure", "Lesson"))
        parts.append(f"<details><summary>{name} ({count})</summary>\n\n{short}\n\n</details>")
    return "\n\n".join(parts)


def read_notebook(text: str) -> nbformat.NotebookNode:
    """A lesson as myst-nb shows it: folded as in JupyterLab, with alt texts where myst-nb looks for them."""
    notebook = nbformat.reads(text, 4)
    for index, cell in enumerate(notebook.cells):
        match = WRITEFILE.match(cell.source)
        if match:
            shown = as_file(match[1], cell.source[match.end() :], is_open=not is_folded(cell.source))
            notebook.cells[index] = nbformat.v4.new_markdown_cell(shown, id=cell.id)
        elif cell.cell_type == "code":
            if is_folded(cell.source):
                cell.metadata["tags"] = [*cell.metadata.get("tags", []), "hide-input"]
            for output in cell.outputs:
                alt = output.get("metadata", {}).get("image/png", {}).get("alt")
                if alt:
                    cell.metadata["mystnb"] = {"image": {"alt": alt}}
    return notebook


def as_file(name: str, body: str, is_open: bool) -> str:
    """A file of the course under a line that tells its name and length."""
    state = " open" if is_open else ""
    lines = body.count("\n") + 1
    head = f'<details class="file"{state}><summary><code>{name}</code> · {lines} lines</summary>'
    return f"{head}\n\n{fenced(body, LANGUAGES.get(Path(name).suffix, 'text'))}\n\n</details>"
