"""``make sync``: bring everything that is derived from the notebooks up to date, without running anything.

- ``labs/lab_*`` and ``labs/exercises/*/exercise.py`` from the ``%%writefile`` cells.
- The stub in an exercise's cell from its solution: each block between marks becomes a ``raise``.
- Which cells are folded, by the rule of ``shared.tools.folding``.
- The minutes in each header, and above each folded lab for how long it runs: ``shared.tools.minutes``.
- The line of links under each header, the map in lesson 00 and the table in the README.
- The README's pictures and tables from the outputs of cells tagged ``readme:NAME``: a picture becomes
  ``notebooks/images/NAME.png``, a table stands between the marks of that name.
"""

import argparse
import base64
import re
from itertools import chain
from pathlib import Path

import nbformat

from shared.tools import run_tool
from shared.tools.folding import fold
from shared.tools.lessons import OTHER_KINDS, ROOT, Lesson, cells_of, read_lessons, written_files
from shared.tools.minutes import Effort, effort_of, read_times, tell_times

BEGIN = "# solution: begin"
FOUND = "# solution: found"
END = "# solution: end"
TODO = "raise NotImplementedError  # your turn: replace this line"
TABLE = re.compile(r"(<!-- lessons: written by `make sync` -->\n).*?(\n<!-- lessons: end -->)", re.DOTALL)
SHOWN = "readme:"  # begins the tag of a cell whose output the README shows, too
MINUTES = re.compile(r"\d+ min \+ \d+ min exercise")
MAP = "00_start_here.ipynb#Map-of-the-course"


def stub_of(solution: str) -> str:
    """What a reader starts from: each marked block of the solution becomes ``raise NotImplementedError``.

    A block with a line ``# solution: found`` becomes the comments below that line, as code.
    """
    lines: list[str] = []
    begin = 0  # of the block that we are in: the number of its first line in the stub
    place = "outside"
    for line in solution.splitlines():
        mark = line.strip()
        if mark == BEGIN:
            place = "inside"
            begin = len(lines)
            lines.append(line.replace(BEGIN, TODO))
        elif mark == FOUND:
            place = "found"
            del lines[begin:]
        elif mark == END:
            place = "outside"
        elif place == "outside":
            lines.append(line)
        elif place == "found":
            lines.append(line.replace("# ", "", 1))
    return "\n".join(lines) + "\n"


def lesson_table(lessons: list[Lesson], efforts: list[Effort], folder: str) -> str:
    """The course map in Markdown; links start with ``folder``."""
    rows = ["| # | Lesson | Question | Labs | Minutes + exercise | GPU |", "|---|---|---|---|---|---|"]
    for lesson, effort in zip(lessons, efforts, strict=True):
        head = lesson.header
        labs = "<br>".join(f"`{Path(name).name}`" for name in lesson.labs)
        link = f"[{head['title']}]({folder}{lesson.path.name})"
        minutes = f"{effort.reading} + {effort.exercise}"
        rows.append(f"| {lesson.number} | {link} | {head['question']} | {labs} | {minutes} | {head['gpu']} |")
    return "\n".join(rows)


def links_line(lessons: list[Lesson], index: int) -> str:
    """Links to the lesson before, the lesson after and the map."""
    parts = []
    if index > 0:
        before = lessons[index - 1]
        parts.append(f"[← {before.number} {before.header['title']}]({before.path.name})")
    if index + 1 < len(lessons):
        after = lessons[index + 1]
        parts.append(f"[{after.number} {after.header['title']} →]({after.path.name})")
    return " · ".join([*parts, f"[Map of the course]({MAP})"])


def derived_files(root: Path = ROOT) -> dict[Path, str | None]:
    """{path: text it must have} of all that is derived; None for a file that nothing writes."""
    lessons = read_lessons(root)
    times = read_times(root)
    efforts = [effort_of(lesson, times.get(lesson.number, {})) for lesson in lessons]
    table = lesson_table(lessons, efforts, "")
    wanted: dict[Path, str | None] = {}
    for index, lesson in enumerate(lessons):
        notebook = lesson.notebook
        fold(notebook)
        tell_times(lesson, times.get(lesson.number, {}))
        head = notebook.cells[0]
        minutes = f"{efforts[index].reading} min + {efforts[index].exercise} min exercise"
        lines = MINUTES.sub(minutes, head.source, count=1).split("\n")
        head.source = "\n".join([*lines[:5], "", links_line(lessons, index)])
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = _between(TABLE, table, cell.source)
            elif cell.source.startswith("%%writefile ../labs/exercises/"):
                first = cell.source.splitlines()[0]
                solution = root / Path(first.split()[1].removeprefix("../")).with_name("solution.py")
                if solution.is_file():
                    cell.source = f"{first}\n{stub_of(solution.read_text(encoding='utf-8')).rstrip()}"
        wanted[root / lesson.path] = nbformat.writes(notebook) + "\n"
        for name, text in written_files(notebook, lesson.path.name).items():
            wanted[root / name] = text
    readme = root / "README.md"
    if readme.is_file():
        text = readme.read_text(encoding="utf-8")
        text = _between(TABLE, lesson_table(lessons, efforts, "notebooks/"), text)
        for name, data in shown_in_readme(lessons):
            if "text/markdown" in data:
                marks = re.compile(
                    rf"(<!-- {name}: written by `make sync` -->\n).*?(\n<!-- {name}: end -->)", re.S
                )
                text = _between(marks, "".join(data["text/markdown"]), text)
        wanted[readme] = text
    kinds = [(root / "labs").glob(f"*.{kind}") for kind in ("py", *OTHER_KINDS)]
    for path in sorted([*chain(*kinds), *(root / "labs").glob("exercises/*/exercise.py")]):
        wanted.setdefault(path, None)
    return wanted


def shown_in_readme(lessons: list[Lesson]) -> list[tuple[str, dict]]:
    """(NAME, data of its output) of each cell tagged ``readme:NAME`` that has been run."""
    found = []
    for lesson in lessons:
        for cell in cells_of(lesson.notebook, "code"):
            for tag in cell.metadata.get("tags", []):
                if tag.startswith(SHOWN):
                    data = [output.data for output in cell.outputs if "data" in output]
                    found += [(tag.removeprefix(SHOWN), one) for one in data]
    return found


def derived_pictures(root: Path = ROOT) -> dict[Path, bytes]:
    """{path: PNG} of the pictures that the README shows."""
    pictures = {}
    for name, data in shown_in_readme(read_lessons(root)):
        if "image/png" in data:
            pictures[root / "notebooks" / "images" / f"{name}.png"] = base64.b64decode(data["image/png"])
    return pictures


def differences(root: Path = ROOT) -> dict[Path, str]:
    """{path: what is wrong with it} of each derived file that is not as it must be."""
    found = {}
    for path, text in derived_files(root).items():
        if text is None:
            found[path] = "no notebook writes it"
        elif not path.is_file():
            found[path] = "is missing"
        elif path.read_text(encoding="utf-8") != text:
            found[path] = "differs from its source"
    for path, png in derived_pictures(root).items():
        if not path.is_file() or path.read_bytes() != png:
            found[path] = "differs from its source"
    return found


def _between(marks: re.Pattern[str], new: str, text: str) -> str:
    """``text`` with ``new`` between the two marks; as it is when it has no such marks."""
    return marks.sub(lambda match: f"{match[1]}{new}{match[2]}", text)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write what is derived from the notebooks.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when something differs")
    if parser.parse_args().check:
        found = differences()
        for path, problem in found.items():
            print(f"{path.relative_to(ROOT).as_posix()} {problem}")
        return int(bool(found))
    return write_all()


def write_all(root: Path = ROOT) -> int:
    """Write each derived file that differs. Exit code 1 when there is one that no notebook writes."""
    contents: dict[Path, bytes | None] = dict(derived_pictures(root))
    for path, text in derived_files(root).items():
        contents[path] = None if text is None else text.encode()
    failed = False
    for path, problem in differences(root).items():
        name = path.relative_to(root).as_posix()
        content = contents[path]
        if content is None:
            failed = True
            print(f"{name} {problem}: delete it, or write it from a cell")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            print(f"wrote {name}")
    return int(failed)


if __name__ == "__main__":
    run_tool(main)
