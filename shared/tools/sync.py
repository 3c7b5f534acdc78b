"""``make sync``: bring what is derived from notebooks and solutions up to date, and format all code.

Nothing is run. Written are:

- ``labs/lab_*`` from the ``%%writefile`` cells, or the cells from the labs: the side that has changed since
  the last commit counts. If both have, both are named and nothing is written.
- The stub in an exercise's cell, from its solution. A cell that holds an answer is left alone.
- Fenced diffs in lessons, as HTML with colours.
- The line of links under each header, and the line at the end of each lesson that leads on.
- What stands between marks, in the README, in ``notebooks/*.md`` and in lesson 00: ``parts``, ``routes`` and
  ``lessons`` from ``shared.tools.course``, the predictions of all lessons with their answers as
  ``questions``, and NAME from the output of the cell tagged ``readme:NAME``. A picture of such a cell becomes
  ``notebooks/images/NAME.png``.
"""

import argparse
import base64
import re
import subprocess
import sys
from itertools import chain
from pathlib import Path

import nbformat

from shared.runtime.errors import InputError
from shared.runtime.stubs import stub_of
from shared.tools import run_tool
from shared.tools.course import Tables, next_line
from shared.tools.diffs import coloured
from shared.tools.lessons import (
    ANSWER,
    OTHER_KINDS,
    ROOT,
    WRITEFILE,
    Lesson,
    cells_of,
    read_lessons,
    written_files,
)

MARKS = re.compile(
    r"(?P<begin><!-- (?P<name>[\w-]+): written by `make sync` -->\n)"
    r".*?(?P<end>(?<=\n)<!-- (?P=name): end -->)",
    re.DOTALL,
)
NEXT = re.compile(r"\n\n(?:\*\*Next:\*\*|\[all lessons\])[^\n]*\Z")
PREDICTION = re.compile(r"^\*\*Predict:\*\* (.+?)\n\n(<details>.*?</details>)", re.MULTILINE | re.DOTALL)
# A question on questions.md has no cells around it.
MIN_WORDS = 10
TERMS = re.compile(r"1F1B|ZeRO|DDP|FSDP|HSDP|MFU|zero-bubble|scale_grads|no_sync|mp\.spawn")
POINTS_AT_A_CELL = re.compile(
    r"\b(above|below|next cell|this cell|the (lab|script|picture|merge|last part|run) )|"
    r"Answer</summary>\s*(All but|The (first|second)\.|\d+/\d+\s*$)",
    re.IGNORECASE,
)
POINTS_ELSEWHERE = re.compile(
    r"\b(above|below|this (lab|cell|lesson|notebook|work)|these steps|such (a|layers)|theirs|three runs|"
    r"other way round|our|without f|one such|each way|which way|at all four|on A|A's|B joins|first barrier|"
    r"the (two|other|others|last|six|lab|whole batch|same head|piece|wire|formula|formulas|router|barrier|"
    r"agents|weight of a piece)|your ranks|we (stop|make)|all ranks now|four all-reduces|in total|"
    r"two buckets of|first line|of the variables|Exercise \d+ writes|DDP's 4S|"
    r"each rank starts from its own|in units of|drops rows)\b",
    re.IGNORECASE,
)
# Predictions that the page's own first part asks in other words.
ASKED_FIRST = (
    "what share of the step is idle?",
    "the step takes a third longer. What happens to the MFU?",
    "How many all-reduces does a step make with `no_sync`, and how many without?",
    "How much more than float32 DDP does it send?",
    "how many all-to-alls does one layer need, forward and backward?",
    "Is the network slow? Which rank do you look at?",
)
RUFF = (sys.executable, "-m", "ruff")
SORT = ("check", "--fix", "--quiet", "--select", "I")
FORMAT = ("format", "--quiet")
SHOWN = "readme:"  # begins the tag of a cell whose output the README shows, too


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


def committed(name: str, root: Path) -> str | None:
    """The file ``name`` as the last commit has it, or None."""
    command = ["git", "show", f"HEAD:./{name}"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, encoding="utf-8")
    except FileNotFoundError:  # there is no git
        return None
    return done.stdout if done.returncode == 0 else None


def reconcile(lessons: list[Lesson], root: Path = ROOT) -> None:
    """Make each lab equal to its cell, by the side that has changed since the last commit; format it.

    Raises:
        InputError: both sides have changed, or nobody knows which one has. Nothing is written then.
    """
    files: dict[Path, str] = {}
    undecided = []
    for lesson in lessons:
        differing = {}
        for name in [*lesson.labs, *lesson.other_files]:
            path = root / name
            if not path.is_file():
                files[path] = formatted(lesson.written[name], path)
            elif path.read_text(encoding="utf-8") != lesson.written[name]:
                differing[name] = path.read_text(encoding="utf-8")
        old = _committed_cells(lesson, root) if differing else {}
        for name, text in differing.items():
            if lesson.written[name] == old.get(name):
                files[root / name] = formatted(text, root / name)
            elif text == old.get(name):
                files[root / name] = formatted(lesson.written[name], root / name)
            else:
                undecided.append(f"{name} and its cell in {lesson.path.name}")
    if undecided:
        raise InputError(
            "these have both changed since the last commit, make them equal: " + ", ".join(undecided)
        )
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(root).as_posix()}")
    for lesson in lessons:
        _put_into_cells(lesson, {name: files[root / name] for name in lesson.written if root / name in files})


def _committed_cells(lesson: Lesson, root: Path) -> dict[str, str]:
    text = committed(lesson.path.as_posix(), root)
    return written_files(nbformat.reads(text, 4), lesson.path.name) if text else {}


def _put_into_cells(lesson: Lesson, texts: dict[str, str]) -> None:
    lesson.written.update(texts)
    for cell in cells_of(lesson.notebook, "code"):
        match = WRITEFILE.match(cell.source)
        if match and match[1] in texts:
            cell.source = f"{cell.source.splitlines()[0]}\n{texts[match[1]].rstrip()}"


def format_code(root: Path = ROOT) -> None:
    """Sort imports and format all code but that of ``%%writefile`` cells, which ruff leaves alone.

    Raises:
        InputError: ruff cannot read a file; it has said why.
    """
    for arguments in (SORT, FORMAT):
        if subprocess.run([*RUFF, *arguments], cwd=root).returncode:
            raise InputError("nothing else was done: mend the file that ruff names")


def formatted(text: str, path: Path) -> str:
    """The text of a lab as ``format_code`` leaves it; what is no Python stays as it is."""
    if path.suffix != ".py":
        return text
    for arguments in (SORT, FORMAT):
        command = [*RUFF, *arguments, "--stdin-filename", str(path), "-"]
        done = subprocess.run(command, input=text, capture_output=True, encoding="utf-8", cwd=path.parent)
        if done.returncode:
            raise InputError(f"ruff cannot read the cell of {path.name}: {done.stderr.strip()}")
        text = done.stdout
    return text


def answers(lesson: Lesson, root: Path = ROOT) -> list[nbformat.NotebookNode]:
    """Cells of exercises that hold an answer: they are not empty, and no stub of today or the last commit."""
    found = []
    for cell, stub, solution in _exercise_cells(lesson, root):
        source = cell.source.rstrip()
        if source != stub and len(source.splitlines()) > 1:
            old_solution = committed(solution.relative_to(root).as_posix(), root)
            if old_solution is None or source != _stub_cell(cell, old_solution):
                found.append(cell)
    return found


def _exercise_cells(lesson: Lesson, root: Path) -> list[tuple[nbformat.NotebookNode, str, Path]]:
    """(cell, what its stub is, the solution) of each exercise that has a solution."""
    found = []
    for cell in cells_of(lesson.notebook, "code"):
        match = WRITEFILE.match(cell.source)
        if match and match[1].endswith(ANSWER):
            solution = (root / match[1]).with_name("solution.py")
            if solution.is_file():
                found.append((cell, _stub_cell(cell, solution.read_text(encoding="utf-8")), solution))
    return found


def _stub_cell(cell: nbformat.NotebookNode, solution: str) -> str:
    return f"{cell.source.splitlines()[0]}\n{stub_of(solution).rstrip()}"


def derived_files(lessons: list[Lesson], root: Path = ROOT) -> dict[Path, bytes | None]:
    """{path: what it must hold} of all that is derived; None for a file that nothing writes.

    The notebooks of the ``lessons`` become what they must be.
    """
    tables_for_lessons = Tables(lessons, "notebooks").all()
    wanted: dict[Path, str | None] = {}
    for index, lesson in enumerate(lessons):
        notebook = lesson.notebook
        head = notebook.cells[0]
        head.source = "\n".join([*head.source.split("\n")[:5], "", links_line(lessons, index)])
        last = notebook.cells[-1]
        last.source = f"{NEXT.sub('', last.source)}\n\n{next_line(lessons, index)}"
        kept = [id(cell) for cell in answers(lesson, root)]
        for cell, stub, _ in _exercise_cells(lesson, root):
            if id(cell) not in kept:
                cell.source = stub
        for cell in cells_of(notebook, "markdown"):
            cell.source = coloured(filled(cell.source, tables_for_lessons))
        wanted[root / lesson.path] = nbformat.writes(notebook) + "\n"
        for name in [*lesson.labs, *lesson.other_files]:
            wanted[root / name] = lesson.written[name]
    shown = {
        name: "".join(data["text/markdown"])
        for name, data in shown_in_readme(lessons)
        if "text/markdown" in data
    }
    for page in [root / "README.md", *sorted((root / "notebooks").glob("*.md"))]:
        if page.is_file():
            folder = "" if page.parent == root else "notebooks"
            tables = {**Tables(lessons, folder).all(), **shown, "questions": questions(lessons)}
            wanted[page] = filled(page.read_text(encoding="utf-8"), tables)
    for path in sorted(chain(*((root / "labs").glob(f"lab_*.{kind}") for kind in ("py", *OTHER_KINDS)))):
        wanted.setdefault(path, None)
    contents = {path: None if text is None else text.encode() for path, text in wanted.items()}
    for name, data in shown_in_readme(lessons):
        if "image/png" in data:
            contents[root / "notebooks" / "images" / f"{name}.png"] = base64.b64decode(data["image/png"])
    return contents


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


def differences(wanted: dict[Path, bytes | None]) -> dict[Path, str]:
    """{path: what is wrong with it} of each derived file that is not as it must be."""
    problems = {}
    for path, content in wanted.items():
        if content is None:
            problems[path] = "no notebook writes it"
        elif not path.is_file():
            problems[path] = "is missing"
        elif path.read_bytes() != content:
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


def stands_alone(question: str, answer: str) -> bool:
    """Whether one can answer a question without the cells around it, and read the answer without them.

    It names what it asks about: it is long enough or has a term, and points at nothing outside of it.
    """
    is_named = len(question.split()) >= MIN_WORDS or TERMS.search(question)
    return bool(is_named) and not POINTS_ELSEWHERE.search(question) and not POINTS_AT_A_CELL.search(answer)


def questions(lessons: list[Lesson]) -> str:
    """The predictions that lessons ask for and answer in a fold, by lesson; those that stand alone, once."""
    parts = []
    for lesson in lessons:
        asked = [
            f"**{question[0].upper()}{question[1:]}**\n\n{answer}"
            for cell in cells_of(lesson.notebook, "markdown")
            for question, answer in PREDICTION.findall(cell.source)
            if stands_alone(question, answer) and not question.endswith(ASKED_FIRST)
        ]
        if asked:
            title = f"### {lesson.number} [{lesson.header['title']}]({lesson.path.name})"
            parts.append("\n\n".join([title, *asked]))
    return "\n\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write what is derived, and format all code.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when something differs")
    if parser.parse_args().check:
        problems = differences(derived_files(read_lessons()))
        for path, problem in problems.items():
            print(f"{path.relative_to(ROOT).as_posix()} {problem}")
        return int(bool(problems))
    format_code()
    lessons = read_lessons()
    reconcile(lessons)
    for lesson in lessons:
        if answers(lesson):
            print(f"{lesson.path.as_posix()}: its exercise holds an answer, which stays")
    return write_all(lessons)


def write_all(lessons: list[Lesson], root: Path = ROOT) -> int:
    """Write each derived file that differs. Exit code 1 when there is one that no notebook writes."""
    wanted = derived_files(lessons, root)
    failed = False
    for path, problem in differences(wanted).items():
        name = path.relative_to(root).as_posix()
        content = wanted[path]
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
