"""``make lesson N=29 TITLE="Another lesson"``: a lesson's skeleton, which runs and keeps all rules.

What an author has to replace is marked by the word TODO. A test lists what is left of these.
"""

import argparse
import re
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from shared.runtime.errors import InputError
from shared.tools import run_tool
from shared.tools.lessons import ROOT, WRITEFILE
from shared.tools.outputs import clean
from shared.tools.sync import differences, stub_of, write_all

SKELETON = Path(__file__).parent / "skeleton"
CELL = re.compile(r"^==== (markdown|code)(?: (\w+))?\n", re.MULTILINE)
TITLE = re.compile(r"[A-Z][\w ,'-]*")
EXERCISE = "labs/exercises/@NUMBER@_@SLUG@"
# {file of the skeleton: where it goes}
PLACES = {
    "lab": "labs/lab_@NUMBER@_@SLUG@.py",
    "proof": "labs/lab_@NUMBER@_proof.py",
    "solution": f"{EXERCISE}/solution.py",
    "check": f"{EXERCISE}/check.py",
    "answers": "tests/answers/exercise_@NUMBER@.py",
    "faults": "tests/faults/lesson_@NUMBER@.py",
}
NOTEBOOK = "notebooks/@NUMBER@_@SLUG@.ipynb"
STUB = f"{EXERCISE}/exercise.py"


def skeleton(number: str, title: str) -> dict[str, str]:
    """{path below the root: text} of all files of a new lesson.

    Raises:
        InputError: the number is not two digits, or the title cannot be one.
    """
    if not re.fullmatch(r"[0-9]{2}", number):
        raise InputError(f'N must be two digits, not {number!r}: make lesson N=29 TITLE="Another lesson"')
    if not TITLE.fullmatch(title):
        raise InputError(
            f"TITLE must begin with a capital and hold letters, digits and spaces, not {title!r}: "
            'make lesson N=29 TITLE="Another lesson"'
        )
    slug = re.sub(r"\W+", "_", title.lower()).strip("_")

    def fill(text: str) -> str:
        return text.replace("@NUMBER@", number).replace("@SLUG@", slug).replace("@TITLE@", title)

    files = {fill(place): fill(_read(name)) for name, place in PLACES.items()}
    files[fill(STUB)] = stub_of(files[fill(PLACES["solution"])])
    files[fill(NOTEBOOK)] = nbformat.writes(_notebook(fill(_read("notebook")), files)) + "\n"
    return files


def _read(name: str) -> str:
    return (SKELETON / f"{name}.txt").read_text(encoding="utf-8")


def _notebook(text: str, files: dict[str, str]) -> nbformat.NotebookNode:
    """A notebook from its text; a ``%%writefile`` cell gets the text of its file."""
    _, *parts = CELL.split(text)  # kind, tag, source, kind, tag, source, ...
    cells = []
    for kind, tag, part in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        source = part.rstrip("\n")
        writes = WRITEFILE.match(source)
        if writes:
            source = f"{source}\n{files[writes[1]].rstrip()}"
        make = new_markdown_cell if kind == "markdown" else new_code_cell
        cells.append(make(source, metadata={"tags": [tag]} if tag else {}))
    notebook = new_notebook(cells=cells)
    clean(notebook)
    return notebook


def write(number: str, title: str, root: Path = ROOT) -> list[str]:
    """Write a lesson's skeleton and bring links and tables up to date; return the paths of its files.

    Raises:
        InputError: as ``skeleton``, one of the files is there already, or the course is not in sync, so that
            an edited lab would be lost. Then nothing is written.
    """
    files = skeleton(number, title)
    for path, problem in differences(root).items():
        name = path.relative_to(root).as_posix()
        raise InputError(f"{name} {problem}: call `make format` or `make sync` first")
    there = sorted((root / "notebooks").glob(f"{number}_*.ipynb"))
    there += [root / name for name in files if (root / name).exists()]
    if there:
        raise InputError(f"{there[0].relative_to(root).as_posix()} is there already")
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    write_all(root)
    return sorted(files)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the skeleton of a new lesson.")
    parser.add_argument("number", help="two digits that no lesson has yet")
    parser.add_argument("title", help="such as 'Less communication'")
    options = parser.parse_args()
    for name in write(options.number, options.title):
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    run_tool(main)
