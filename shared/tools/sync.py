"""``make sync``: bring everything that is derived from the notebooks up to date, without running anything.

- ``labs/lab_*`` and ``labs/exercises/*/exercise.py`` from the ``%%writefile`` cells.
- The stub in an exercise's cell from its solution: each block between marks becomes a ``raise``.
- Fenced diffs in lessons become HTML with colours.
- Which cells are folded, by the rule of ``shared.tools.folding``.
- The minutes in each header, and above each folded lab for how long it runs: ``shared.tools.minutes``.
- The line of links under each header, and the line at the end of each lesson that leads on.
- What stands between marks, in the README, in ``notebooks/*.md`` and in lesson 00: ``parts``, ``routes`` and
  ``lessons`` from ``shared.tools.course``, the predictions of all lessons with their answers as
  ``questions``, and NAME from the output of the cell tagged ``readme:NAME``. A picture of such a cell becomes
  ``notebooks/images/NAME.png``.
"""

import argparse
import base64
import re
from itertools import chain
from pathlib import Path

import nbformat

from shared.lesson_10.diffs import coloured
from shared.tools import run_tool
from shared.tools.course import Tables, next_line
from shared.tools.folding import fold
from shared.tools.lessons import OTHER_KINDS, ROOT, Lesson, cells_of, read_lessons, written_files
from shared.tools.minutes import effort_of, read_times, tell_times

BEGIN = "# solution: begin"
FOUND = "# solution: found"
END = "# solution: end"
TODO = "raise NotImplementedError  # your turn: replace this line"
MARKS = re.compile(
    r"(?P<begin><!-- (?P<name>[\w-]+): written by `make sync` -->\n)"
    r".*?(?P<end>(?<=\n)<!-- (?P=name): end -->)",
    re.DOTALL,
)
NEXT = re.compile(r"\n\n(?:\*\*Next:\*\*|\[all lessons\])[^\n]*\Z")
PREDICTION = re.compile(r"^\*\*Predict:\*\* (.+?)\n\n(<details>.*?</details>)", re.MULTILINE | re.DOTALL)
SHOWN = "readme:"  # begins the tag of a cell whose output the README shows, too
MINUTES = re.compile(r"\d+ min \+ \d+ min exercise")


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


def links_line(lessons: list[Lesson], index: int) -> str:
    """Links to the lesson before, the lesson after and the table of all."""
    parts = []
    if index > 0:
        before = lessons[index - 1]
        parts.append(f"[← {before.number} {before.header['title']}]({before.path.name})")
    if index + 1 < len(lessons):
        after = lessons[index + 1]
        parts.append(f"[{after.number} {after.header['title']} →]({after.path.name})")
    return " · ".join([*parts, "[All lessons](lessons.md)"])


def derived_files(root: Path = ROOT) -> dict[Path, str | None]:
    """{path: text it must have} of all that is derived; None for a file that nothing writes."""
    lessons = read_lessons(root)
    times = read_times(root)
    efforts = [effort_of(lesson, times.get(lesson.number, {})) for lesson in lessons]
    tables_for_lessons = Tables(lessons, efforts, "notebooks").all()
    wanted: dict[Path, str | None] = {}
    for index, lesson in enumerate(lessons):
        notebook = lesson.notebook
        fold(notebook)
        tell_times(lesson, times.get(lesson.number, {}))
        head = notebook.cells[0]
        minutes = f"{efforts[index].reading} min + {efforts[index].exercise} min exercise"
        lines = MINUTES.sub(minutes, head.source, count=1).split("\n")
        head.source = "\n".join([*lines[:5], "", links_line(lessons, index)])
        last = notebook.cells[-1]
        last.source = f"{NEXT.sub('', last.source)}\n\n{next_line(lessons, index)}"
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = coloured(filled(cell.source, tables_for_lessons))
            elif cell.source.startswith("%%writefile ../labs/exercises/"):
                first = cell.source.splitlines()[0]
                solution = root / Path(first.split()[1].removeprefix("../")).with_name("solution.py")
                if solution.is_file():
                    cell.source = f"{first}\n{stub_of(solution.read_text(encoding='utf-8')).rstrip()}"
        wanted[root / lesson.path] = nbformat.writes(notebook) + "\n"
        for name, text in written_files(notebook, lesson.path.name).items():
            wanted[root / name] = text
    shown = {
        name: "".join(data["text/markdown"])
        for name, data in shown_in_readme(lessons)
        if "text/markdown" in data
    }
    for page in [root / "README.md", *sorted((root / "notebooks").glob("*.md"))]:
        if page.is_file():
            folder = "" if page.parent == root else "notebooks"
            tables = {**Tables(lessons, efforts, folder).all(), **shown, "questions": questions(lessons)}
            wanted[page] = filled(page.read_text(encoding="utf-8"), tables)
    kinds = [(root / "labs").glob(f"*.{kind}") for kind in ("py", *OTHER_KINDS)]
    for path in sorted([*chain(*kinds), *(root / "labs").glob("exercises/*/exercise.py")]):
        wanted.setdefault(path, None)
    return wanted


def shown_in_readme(lessons: list[Lesson]) -> list[tuple[str, dict]]:
    """(NAME, data of its output) of each cell tagged ``readme:NAME`` that has been run."""
    shown = []
    for lesson in lessons:
        for cell in cells_of(lesson.notebook, "code"):
            for tag in cell.metadata.get("tags", []):
                if tag.startswith(SHOWN):
                    data = [output.data for output in cell.outputs if "data" in output]
                    shown += [(tag.removeprefix(SHOWN), bundle) for bundle in data]
    return shown


def derived_pictures(root: Path = ROOT) -> dict[Path, bytes]:
    """{path: PNG} of the pictures that the README shows."""
    pictures = {}
    for name, data in shown_in_readme(read_lessons(root)):
        if "image/png" in data:
            pictures[root / "notebooks" / "images" / f"{name}.png"] = base64.b64decode(data["image/png"])
    return pictures


def differences(root: Path = ROOT) -> dict[Path, str]:
    """{path: what is wrong with it} of each derived file that is not as it must be."""
    problems = {}
    for path, text in derived_files(root).items():
        if text is None:
            problems[path] = "no notebook writes it"
        elif not path.is_file():
            problems[path] = "is missing"
        elif path.read_text(encoding="utf-8") != text:
            problems[path] = "differs from its source"
    for path, png in derived_pictures(root).items():
        if not path.is_file() or path.read_bytes() != png:
            problems[path] = "differs from its source"
    return problems


def filled(text: str, tables: dict[str, str]) -> str:
    """``text`` with each table between the marks of its name; other marks keep what they hold."""
    return MARKS.sub(
        lambda match: (
            f"{match['begin']}{tables[match['name']]}\n{match['end']}"
            if match["name"] in tables
            else match[0]
        ),
        text,
    )


def questions(lessons: list[Lesson]) -> str:
    """The predictions that lessons ask for and answer in a fold, by lesson."""
    parts = []
    for lesson in lessons:
        asked = [
            f"{question[0].upper()}{question[1:]}\n\n{answer}"
            for cell in cells_of(lesson.notebook, "markdown")
            for question, answer in PREDICTION.findall(cell.source)
        ]
        if asked:
            title = f"## {lesson.number} [{lesson.header['title']}]({lesson.path.name})"
            parts.append("\n\n".join([title, *asked]))
    return "\n\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write what is derived from the notebooks.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when something differs")
    if parser.parse_args().check:
        problems = differences()
        for path, problem in problems.items():
            print(f"{path.relative_to(ROOT).as_posix()} {problem}")
        return int(bool(problems))
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
